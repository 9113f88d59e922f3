"""A guard for the calls in which a written argument overlaps another argument."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import GraphModule

from tofuse.capture.fx.aliases import storage_id, written_storages
from tofuse.capture.fx.node_tensors import strided_fake_tensor
from tofuse.capture.fx.overlap import byte_span, has_write_overlap


def overlap_guard(gm: GraphModule) -> Callable[..., bool] | None:
    """Return whether a call's written arguments overlap others; None if no call's can.

    Dynamo's guards don't check the memory of arguments.
    """
    values = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = [k for k, v in enumerate(values) if isinstance(v, torch.Tensor)]
    fakes = {k: t for k in tensors if (t := strided_fake_tensor(values[k])) is not None}
    storages = written_storages(gm.graph)
    written = {k for k, t in fakes.items() if storage_id(t) in storages}
    if not written or len(tensors) < 2 or len(fakes) < len(tensors):
        return None
    symbolic = tensors if any(isinstance(v, torch.SymInt) for v in values) else ()
    checked: list[object] = []

    def overlaps(*args: torch.Tensor) -> bool:
        nonlocal checked
        addresses = [args[k].data_ptr() for k in tensors]
        memory: list[object] = [*addresses, *[(args[k].shape, args[k].stride()) for k in symbolic]]
        if memory == checked:
            return False
        bases = zip(tensors, addresses, strict=True)
        if has_write_overlap([(*byte_span(args[k], base), k in written) for k, base in bases]):
            return True
        checked = memory
        return False

    return overlaps
