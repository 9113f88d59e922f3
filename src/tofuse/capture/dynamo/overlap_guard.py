"""A guard on the memory of written arguments: PyTorch runs calls whose arguments overlap."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from tofuse.capture.fx.mutation import _written_memory
from tofuse.capture.fx.node_tensors import _plain, memory
from tofuse.capture.fx.overlap import _span, collide
from tofuse.torch_internals.torch_types import CompiledFunction


def guard_overlaps(gm: GraphModule, compiled: CompiledFunction) -> CompiledFunction:
    """`compiled`, but `gm` where an argument it writes into overlaps another.

    Dynamo's guards do not look at the memory of arguments.
    """
    values = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = [k for k, v in enumerate(values) if isinstance(v, torch.Tensor)]
    places = _written_memory(gm)
    changed = {k for k in tensors if (t := _plain(values[k])) is not None and memory(t) in places}
    if not changed or len(tensors) < 2 or any(_plain(values[k]) is None for k in tensors):
        return compiled
    fixed = not any(isinstance(v, torch.SymInt) for v in values)
    known: list[int] = []

    def run(*args: torch.Tensor) -> object:
        nonlocal known
        places = [args[k].data_ptr() for k in tensors]
        if places != known or not fixed:
            found = zip(tensors, places, strict=True)
            if collide([(*_span(args[k], at), k in changed) for k, at in found]):
                return gm.forward(*args)
            known = places
        return compiled(*args)

    return run
