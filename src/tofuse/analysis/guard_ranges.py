"""The iterations that pass a guard, and the part of each buffer that guarded accesses touch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import InRange, Kernel, Load, Store

AxisRange = tuple[str, int, int]  # axis, start, end (exclusive)


@lru_cache(maxsize=8)
def touched_fractions(kernel: Kernel) -> Mapping[str, float]:
    """Return, per buffer, the fraction of iteration points that touch distinct elements.

    It is below 1 if all accesses to the buffer are guarded. Guarded accesses with the same first
    element and the same strides count once.
    """
    guards = {s.name: s for s in kernel.body if isinstance(s, InRange)}
    ranges = {n: axis_range(g, kernel) if g.guard is None else None for n, g in guards.items()}
    fractions: dict[str, dict[tuple[object, ...], float]] = {}
    for s in kernel.body:
        if not isinstance(s, (Load, Store)):
            continue
        passing = ranges.get(s.guard) if isinstance(s, Load) and s.guard is not None else None
        of_buffer = fractions.setdefault(s.buffer, {})
        if passing is None:
            of_buffer[()] = 1.0
            continue
        axis, lo, hi = passing
        start = s.index.const + s.index.coefficient(axis) * lo
        of_buffer[repr(start), s.index.terms] = (hi - lo) / max(1, size_hint(kernel.extent(axis)))
    return {name: min(1.0, sum(found.values())) for name, found in fractions.items()}


def axis_range(guard: InRange, kernel: Kernel) -> AxisRange | None:
    """Return the range of one axis in which a guard holds; None if it is not such a range."""
    axes = guard.index.axes
    extent = kernel.extent(axes[0]) if len(axes) == 1 else None
    bounds = passing_indices(guard, axes[0]) if isinstance(extent, int) else None
    if extent is None or bounds is None:
        return None
    lo, hi = max(0, bounds[0]), min(size_hint(extent), bounds[1])
    return (axes[0], lo, hi) if lo < hi else None


def passing_indices(guard: InRange, axis: str) -> tuple[int, int] | None:
    """Return the indices of an axis that pass a guard; None if it depends on anything else."""
    lo, hi, shift = guard.lo, guard.hi, guard.index.const
    if guard.index.terms != ((axis, 1),):
        return None
    if not (isinstance(lo, int) and isinstance(hi, int) and isinstance(shift, int)):
        return None
    return lo - shift, hi - shift
