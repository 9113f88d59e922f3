"""Strides of a kernel's accesses: the order of its axes in memory, and transposed accesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import Kernel


def axes_by_stride(kernel: Kernel, accesses: Sequence[tuple[AffineExpr, int]]) -> list[str]:
    """Return the axes by decreasing mean stride of the accesses, given with their weights."""

    def stride(axis: str) -> float:
        steps = [(abs(size_hint(index.coefficient(axis))), w) for index, w in accesses]
        return sum(s * w for s, w in steps if s) / max(1, sum(w for s, w in steps if s))

    return sorted((a.name for a in kernel.axes), key=lambda a: (-stride(a), a))


def transposed_axis(
    indices: Sequence[AffineExpr], vector: str, sizes: Mapping[str, int], shortest: int
) -> str | None:
    """Return an axis other than the vector axis along which some buffer is contiguous.

    None unless both axes have at least `shortest` elements.
    """
    for index in indices:
        for axis in index.axes if index.coefficient(vector) not in (0, 1) else ():
            long = min(sizes[axis], sizes[vector]) >= shortest
            if axis != vector and index.coefficient(axis) == 1 and long:
                return axis
    return None
