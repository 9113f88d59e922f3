"""The bytes that tensors cover, and tests for overlap between and within tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tofuse.capture.fx.sizes import size_hint
from tofuse.torch_internals.fake_tensors import FakeTensor


def has_write_overlap(spans: Sequence[tuple[int, int, bool]]) -> bool:
    """Whether two spans (first byte, end, is written) overlap and at least one is written."""
    max_end = max_written_end = 0
    for first, end, is_written in sorted(spans):
        if first == end:
            continue
        if first < (max_end if is_written else max_written_end):
            return True
        max_end = max(max_end, end)
        max_written_end = max(max_written_end, end) if is_written else max_written_end
    return False


def has_internal_overlap(tensor: torch.Tensor) -> bool:
    """Whether two indices of a tensor may have one address."""
    pairs = [
        (size_hint(s, 1), size_hint(n, 1))
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


def byte_span(tensor: torch.Tensor, base: int) -> tuple[int, int]:
    """Return the first byte of a tensor and the byte after its last.

    `base` is the tensor's address, or the storage's for a fake tensor.
    """
    extents = [size_hint(n, 1) for n in tensor.shape]
    if isinstance(tensor, FakeTensor):
        base += size_hint(tensor.storage_offset(), 1) * tensor.itemsize
    if 0 in extents:
        return base, base
    reach = sum((n - 1) * size_hint(s, 1) for n, s in zip(extents, tensor.stride(), strict=True))
    return base, base + (reach + 1) * tensor.itemsize
