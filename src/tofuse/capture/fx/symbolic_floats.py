"""Python floats that vary from call to call, which Dynamo passes in 0-d tensors."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.symbolic_sizes import free_symbols_of


def symbolic_floats(gm: GraphModule) -> list[torch.SymFloat]:
    """Return the symbolic floats of a graph's arguments."""
    values = (n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder"))
    memos = (v.item_memo for v in values if isinstance(v, FakeTensor))
    return [m for m in memos if isinstance(m, torch.SymFloat)]


def count_float_guards(gm: GraphModule) -> int:
    """Return the number of guards on symbolic floats.

    A new guard means that something was specialized to a float's value.
    """
    floats = [m.node for m in symbolic_floats(gm)]
    symbols = {s for n in floats for s in free_symbols_of(n)}
    guards = floats[0].shape_env.guards if floats else ()
    return sum(not symbols.isdisjoint(g.expr.free_symbols) for g in guards)
