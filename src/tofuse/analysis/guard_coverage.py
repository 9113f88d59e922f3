"""Guard coverage: the fraction of a loop in which each statement is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import AffineExpr, Compute, Gather, InRange, Kernel, Load, Reduce, Stmt, Store

MAX_SEGMENTS = 12  # a loop with more is assumed to run masked and in full
AxisRange = tuple[str, int, int]  # axis, start, end (exclusive)


def statement_coverage(kernel: Kernel, axes: Sequence[str]) -> dict[Stmt, float]:
    """Return the fraction of an axis in which each statement is live; absent statements count 1.

    The loop over the first axis with guards is split into segments in which the guards are
    constant. A statement that only one side of a `where` needs is dead in the other segments.
    """
    ranges = {s.name: _axis_range(s, kernel) for s in kernel.body if isinstance(s, InRange)}
    guarded = {r[0] for r in ranges.values() if r is not None}
    axis = next((a for a in axes if a in guarded), None)
    if axis is None:
        return {}
    guards = {name: r for name, r in ranges.items() if r is not None and r[0] == axis}
    extent = size_hint(kernel.extent(axis))
    cuts = sorted({0, extent, *(c for _, *ends in guards.values() for c in ends)})
    segments = list(pairwise(cuts))
    if len(segments) > MAX_SEGMENTS:
        return {}
    all_segments = frozenset(range(len(segments)))
    passing = {
        name: frozenset(k for k, (a, b) in enumerate(segments) if lo <= a and b <= hi)
        for name, (_, lo, hi) in guards.items()
    }
    needed: dict[str, frozenset[int]] = {}
    coverage: dict[Stmt, float] = {}
    for s in reversed(kernel.body):
        live = all_segments if isinstance(s, (Store, Reduce)) else needed.get(s.name, frozenset())
        if isinstance(s, (Load, Gather)) and s.guard in passing:
            live &= passing[s.guard]
        for name, where in _needed_segments(s, live, passing).items():
            needed[name] = needed.get(name, frozenset()) | where
        coverage[s] = sum(segments[k][1] - segments[k][0] for k in live) / extent
    return coverage


def _needed_segments(
    s: Stmt, live: frozenset[int], passing: Mapping[str, frozenset[int]]
) -> dict[str, frozenset[int]]:
    """Return the segments in which a statement needs each of its operands.

    `live` are the segments that need the statement, `passing` those in which each guard is true.
    """
    if isinstance(s, Compute) and s.op == "where" and s.args[0] in passing:
        test, yes, no = s.args
        true_segments = passing[str(test)]
        needed = {str(test): live}
        for arg, where in ((yes, live & true_segments), (no, live - true_segments)):
            if isinstance(arg, str):
                needed[arg] = needed.get(arg, frozenset()) | where
        return needed
    return dict.fromkeys(s.uses, live)


@lru_cache(maxsize=8)
def touched_fractions(kernel: Kernel) -> Mapping[str, float]:
    """Return, per buffer, the fraction of iteration points that touch distinct elements.

    It is below 1 if all accesses to the buffer are guarded. Guarded accesses with the same first
    element and the same strides count once.
    """
    guards = {s.name: s for s in kernel.body if isinstance(s, InRange)}
    ranges = {n: _axis_range(g, kernel) if g.guard is None else None for n, g in guards.items()}
    fractions: dict[str, dict[tuple[object, ...], float]] = {}
    for s in kernel.body:
        if not isinstance(s, (Load, Store)):
            continue
        axis_range = ranges.get(s.guard) if isinstance(s, Load) and s.guard is not None else None
        of_buffer = fractions.setdefault(s.buffer, {})
        if axis_range is None:
            of_buffer[()] = 1.0
            continue
        axis, lo, hi = axis_range
        start = s.index.const + s.index.coefficient(axis) * lo
        of_buffer[repr(start), s.index.terms] = (hi - lo) / max(1, size_hint(kernel.extent(axis)))
    return {name: min(1.0, sum(found.values())) for name, found in fractions.items()}


def _axis_range(guard: InRange, kernel: Kernel) -> AxisRange | None:
    """Return the range of one axis in which a guard holds; None if it is not such a range."""
    index: AffineExpr = guard.index
    if len(index.terms) != 1 or index.terms[0][1] != 1:
        return None
    axis = index.terms[0][0]
    if not all(isinstance(d, int) for d in (guard.lo, guard.hi, index.const, kernel.extent(axis))):
        return None
    shift, extent = size_hint(index.const), size_hint(kernel.extent(axis))
    lo, hi = max(0, size_hint(guard.lo) - shift), min(extent, size_hint(guard.hi) - shift)
    return (axis, lo, hi) if lo < hi else None
