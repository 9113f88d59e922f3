"""A guard that runs calls in eager where a written argument overlaps another argument."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from tofuse.capture.fx.mutation import written_storages
from tofuse.capture.fx.node_tensors import storage_id, strided_fake_tensor
from tofuse.capture.fx.overlap import byte_span, has_write_overlap
from tofuse.torch_internals.torch_types import CompiledFunction


def add_overlap_guard(gm: GraphModule, compiled: CompiledFunction) -> CompiledFunction:
    """Return `compiled`, guarded: eager runs calls where a written argument overlaps another.

    Dynamo's guards don't check the memory of arguments.
    """
    values = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = [k for k, v in enumerate(values) if isinstance(v, torch.Tensor)]
    storages = written_storages(gm)
    written = {
        k
        for k in tensors
        if (t := strided_fake_tensor(values[k])) is not None and storage_id(t) in storages
    }
    if (
        not written
        or len(tensors) < 2
        or any(strided_fake_tensor(values[k]) is None for k in tensors)
    ):
        return compiled
    static = not any(isinstance(v, torch.SymInt) for v in values)
    checked: list[int] = []

    def run(*args: torch.Tensor) -> object:
        nonlocal checked
        addresses = [args[k].data_ptr() for k in tensors]
        if addresses != checked or not static:
            bases = zip(tensors, addresses, strict=True)
            if has_write_overlap([(*byte_span(args[k], base), k in written) for k, base in bases]):
                return gm.forward(*args)
            checked = addresses
        return compiled(*args)

    return run
