"""A guard for the calls in which a written argument overlaps another argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule

from tofuse.capture.fx.aliases import storage_id, written_storages
from tofuse.capture.fx.node_tensors import strided_fake_tensor
from tofuse.capture.fx.overlap import byte_span, has_write_overlap


@dataclass
class OverlapGuard:
    """Accepts the calls whose written arguments overlap others.

    `tensors`, `written` and `symbolic` are positions of arguments: the tensors, and those of them
    that are written, and whose sizes are symbolic.
    """

    tensors: Sequence[int]
    written: frozenset[int]
    symbolic: Sequence[int]
    checked: list[object] = field(default_factory=list, repr=False)  # memory without overlaps

    def __call__(self, *args: torch.Tensor) -> bool:
        """Return whether the arguments of a call overlap."""
        addresses = [args[k].data_ptr() for k in self.tensors]
        sizes = [(args[k].shape, args[k].stride()) for k in self.symbolic]
        memory: list[object] = [*addresses, *sizes]
        if memory == self.checked:
            return False
        bases = zip(self.tensors, addresses, strict=True)
        spans = [(*byte_span(args[k], base), k in self.written) for k, base in bases]
        if has_write_overlap(spans):
            return True
        self.checked = memory
        return False


def overlap_guard(gm: GraphModule) -> OverlapGuard | None:
    """Return the guard of a program; None if no call of it has written arguments that overlap.

    Dynamo's guards don't check the memory of arguments.
    """
    values = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = [k for k, v in enumerate(values) if isinstance(v, torch.Tensor)]
    fakes = {k: t for k in tensors if (t := strided_fake_tensor(values[k])) is not None}
    storages = written_storages(gm.graph)
    written = frozenset(k for k, t in fakes.items() if storage_id(t) in storages)
    if not written or len(tensors) < 2 or len(fakes) < len(tensors):
        return None
    symbolic = tensors if any(isinstance(v, torch.SymInt) for v in values) else ()
    return OverlapGuard(tensors, written, symbolic)
