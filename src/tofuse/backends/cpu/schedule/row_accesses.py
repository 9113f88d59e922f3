"""Find which bytes of each buffer a nest accesses in each iteration of its outermost loop."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tofuse.analysis.guard_ranges import passing_indices
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import Gather, InRange, Kernel, Load, Store
from tofuse.ir.nest import Nest
from tofuse.ir.row_access import Interval, KernelRows, RowAccess
from tofuse.ir.schedule import Loop

Bounds = Mapping[str, Interval]  # of each axis


def row_accesses(nest: Nest) -> KernelRows | None:
    """Return the accesses of a nest; None if parts of its outermost loop cannot run by themselves.

    They can if threads share the loop, no reduction combines what they compute, and no later phase
    reads it. All sizes must be numbers.
    """
    kernel, (phase, *later) = nest.kernel, nest.phases
    if later or not phase.band or phase.partials or kernel.symbols:
        return None
    if any(isinstance(s, Gather) for s in kernel.body):  # they report a status
        return None
    outer, *others = phase.band
    extents = {a.name: size_hint(a.extent) for a in kernel.axes}
    guards = {s.name: s for s in kernel.body if isinstance(s, InRange)}
    whole: Bounds = {axis: (0, n) for axis, n in extents.items()}
    found: dict[tuple[int, bool, int, int, int], Interval] = {}
    for s in kernel.body:
        if not isinstance(s, (Load, Store)):
            continue
        bounds = whole
        if isinstance(s, Load):
            bounds = _guarded(s.guard, guards, whole)
        if any(first >= end for first, end in bounds.values()):
            continue
        number = next(k for k, b in enumerate(kernel.buffers) if b.name == s.buffer)
        access = _access(s.index, number, isinstance(s, Store), bounds, outer, kernel)
        if access is None:
            return None
        key = access.buffer, access.writes, access.first, access.end, access.step
        low, high = found.get(key, (access.low, access.high))
        found[key] = min(low, access.low), max(high, access.high)
    inner = math.prod(_trips(loop, extents) for loop in others)
    accesses = tuple(RowAccess(*key, *interval) for key, interval in found.items())
    return KernelRows(_trips(outer, extents), inner, accesses)


def _trips(loop: Loop, extents: Mapping[str, int]) -> int:
    return -(-extents[loop.axis] // max(1, loop.strip))


def _guarded(guard: str | None, guards: Mapping[str, InRange], whole: Bounds) -> Bounds:
    """Return the indices of each axis that may pass a guard."""
    bounds = dict(whole)
    while guard is not None and guard in guards:
        in_range = guards[guard]
        for axis in in_range.index.axes[:1]:
            passing = passing_indices(in_range, axis)
            if passing is not None:
                first, end = bounds[axis]
                bounds[axis] = max(first, passing[0]), min(end, passing[1])
        guard = in_range.guard
    return bounds


def _access(
    index: AffineExpr, buffer: int, writes: bool, bounds: Bounds, outer: Loop, kernel: Kernel
) -> RowAccess | None:
    """Return the bytes that an access touches; None if its index has no numbers."""
    itemsize, strip = kernel.buffers[buffer].dtype.itemsize, max(1, outer.strip)
    low = high = index.const
    first, end = bounds[outer.axis]
    step: int = 0
    for axis, c in index.terms:
        if not isinstance(c, int):
            return None
        if axis == outer.axis and c > 0:
            step, reach = c * strip, (0, strip - 1)
        else:
            reach = bounds[axis][0], bounds[axis][1] - 1
        low, high = low + min(c * reach[0], c * reach[1]), high + max(c * reach[0], c * reach[1])
    if not (isinstance(low, int) and isinstance(high, int)):
        return None
    low, high = low * itemsize, (high + 1) * itemsize
    return RowAccess(buffer, writes, first // strip, -(-end // strip), step * itemsize, low, high)
