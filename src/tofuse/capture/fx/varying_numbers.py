"""Python numbers that vary from call to call, which Dynamo passes in tensors."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule


def varying_numbers(gm: GraphModule) -> list[torch.SymFloat]:
    """The numbers of the user's that vary, which Dynamo has in tensors."""
    values = (n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder"))
    memos = (v.item_memo for v in values if isinstance(v, FakeTensor))
    return [m for m in memos if isinstance(m, torch.SymFloat)]


def count_number_guards(gm: GraphModule) -> int:
    """How often somebody has asked what such a number is: what was made of the answer is Dynamo's
    to guard, and holds for no other number."""
    numbers = [m.node for m in varying_numbers(gm)]
    symbols = {s for n in numbers for s in n._expr.free_symbols}
    guards = numbers[0].shape_env.guards if numbers else ()
    return sum(not symbols.isdisjoint(g.expr.free_symbols) for g in guards)
