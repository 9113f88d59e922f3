"""Python floats that vary from call to call, which Dynamo passes in 0-d tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import free_symbols

from tofuse.capture.fx.node_tensors import symbolic_item


def symbolic_floats(gm: GraphModule) -> list[torch.SymFloat]:
    """Return the symbolic floats of a graph's arguments."""
    items = map(symbolic_item, gm.graph.find_nodes(op="placeholder"))
    return [x for x in items if isinstance(x, torch.SymFloat)]


def float_guard_counter(gm: GraphModule) -> Callable[[], int]:
    """Return a function that counts the guards on floats that are symbolic now.

    A new guard means that something was specialized to a float's value.
    """
    floats = symbolic_floats(gm)
    symbols = {s for m in floats for s in free_symbols(m)}
    guards = floats[0].node.shape_env.guards if floats else ()
    return lambda: sum(not symbols.isdisjoint(g.expr.free_symbols) for g in guards)
