"""Which bytes tensors cover, and whether those of two tensors, or of two indices, overlap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tofuse.capture.fx.sizes import at_first_call


def collide(spans: Sequence[tuple[int, int, bool]]) -> bool:
    """Whether two spans (first byte, byte after the last, written) meet, one of them written."""
    end = end_of_written = 0
    for first, after, written in sorted(spans):
        if first == after:
            continue
        if first < (end if written else end_of_written):
            return True
        end = max(end, after)
        end_of_written = max(end_of_written, after) if written else end_of_written
    return False


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two indices may lie in one place."""
    pairs = [
        (at_first_call(s, 1), at_first_call(n, 1))
        for s, n in zip(tensor.stride(), tensor.shape, strict=True)
    ]
    reach = 0
    for stride, extent in sorted(pairs):
        if extent == 0:
            return False
        if extent > 1:
            if stride <= reach:
                return True
            reach += stride * (extent - 1)
    return False


def _span(tensor: torch.Tensor, base: int) -> tuple[int, int]:
    """The bytes it lies in, from `base` or, where it is fake, from its storage's place on."""
    extents = [at_first_call(n, 1) for n in tensor.shape]
    if isinstance(tensor, FakeTensor):
        base += at_first_call(tensor.storage_offset(), 1) * tensor.itemsize
    if 0 in extents:
        return base, base
    reach = sum(
        (n - 1) * at_first_call(s, 1) for n, s in zip(extents, tensor.stride(), strict=True)
    )
    return base, base + (reach + 1) * tensor.itemsize
