"""Guard coverage: the fraction of a loop in which each statement is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tofuse.analysis.guard_ranges import axis_range
from tofuse.cost.thresholds import MAX_LOOP_SEGMENTS, MAX_SEGMENT_LOADS
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import (
    CARRIED,
    WRITES,
    Compute,
    Gather,
    InRange,
    Kernel,
    Load,
    Next,
    Reduce,
    Stmt,
)


def pays_to_split(segments: int, loads: int) -> bool:
    """Whether a loop is split where its guards change; `loads` count those of all segments."""
    return segments <= MAX_LOOP_SEGMENTS or loads <= MAX_SEGMENT_LOADS


def statement_coverage(kernel: Kernel, axes: Sequence[str]) -> dict[Stmt, float]:
    """Return the fraction of an axis in which each statement is live; absent statements count 1.

    The loop over the first axis with guards is split into segments in which the guards are
    constant. A statement that only one side of a `where` needs is dead in the other segments.
    """
    ranges = {s.name: axis_range(s, kernel) for s in kernel.body if isinstance(s, InRange)}
    guarded = {r[0] for r in ranges.values() if r is not None}
    axis = next((a for a in axes if a in guarded), None)
    if axis is None:
        return {}
    guards = {name: r for name, r in ranges.items() if r is not None and r[0] == axis}
    extent = size_hint(kernel.extent(axis))
    cuts = sorted({0, extent, *(c for _, *ends in guards.values() for c in ends)})
    segments = list(pairwise(cuts))
    all_segments = frozenset(range(len(segments)))
    passing = {
        name: frozenset(k for k, (a, b) in enumerate(segments) if lo <= a and b <= hi)
        for name, (_, lo, hi) in guards.items()
    }
    loads = [passing.get(s.guard or "", all_segments) for s in kernel.body if isinstance(s, Load)]
    if not pays_to_split(len(segments), len(segments) + sum(map(len, loads))):
        return {}
    needed: dict[str, frozenset[int]] = {}
    coverage: dict[Stmt, float] = {}
    for s in reversed(kernel.body):
        live = (
            all_segments
            if isinstance(s, (*WRITES, Reduce, Next, *CARRIED))
            else needed.get(s.name, frozenset())
        )
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
