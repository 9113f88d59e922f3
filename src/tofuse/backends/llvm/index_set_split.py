"""Where along an axis guards are known: there a loop over a cat is that over one of its pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tofuse.backends.llvm.ir_text import Function
from tofuse.ir.kernel import Inside, Load
from tofuse.ir.nest import Do, Node

MOST = 6  # segments of one loop; each is compiled by itself
MOST_LOADS = 64  # in all segments: more of them, if each reads few pieces
MOST_STATEMENTS = 512  # in all segments of a loop around others


@dataclass(frozen=True)
class Segment:
    """From `start` up to `end`, where these guards pass in every lane or in none."""

    start: int
    end: int
    known: dict[str, bool]


def segments(
    nodes: Sequence[Node], axis: str, extent: int, step: int, given: Mapping[str, bool]
) -> list[Segment]:
    """A loop from 0 in pieces that start at multiples of `step`; other guards are `given`."""
    guards = [n.stmt for n in nodes if isinstance(n, Do) and isinstance(n.stmt, Inside)]
    ranges = {g.name: _range(g, axis) for g in guards}
    cuts = {0, extent}
    for bounds in ranges.values():
        for b in bounds or ():
            cuts |= {b // step * step, -(-b // step) * step}
    ends = sorted(c for c in cuts if 0 <= c <= extent)
    found: list[Segment] = []
    for start, end in pairwise(ends):
        known: dict[str, bool] = {}
        for g in guards:
            inside = _outcome(ranges[g.name], start, end)
            outer = True if g.guard is None else known.get(g.guard, given.get(g.guard))
            if inside is False or outer is False:
                known[g.name] = False
            elif inside and outer:
                known[g.name] = True
        if found and found[-1].known == known:
            found[-1] = Segment(found[-1].start, end, known)
        else:
            found.append(Segment(start, end, known))
    few = len(found) <= MOST or sum(_loads(nodes, s.known) for s in found) <= MOST_LOADS
    return found if found and few else [Segment(0, extent, {})]


def _loads(nodes: Sequence[Node], known: Mapping[str, bool]) -> int:
    """How many loads are left of a body, and one for the rest of it."""
    stmts = [n.stmt for n in nodes if isinstance(n, Do)]
    loads = [s for s in stmts if isinstance(s, Load)]
    return 1 + sum(s.guard is None or known.get(s.guard, True) for s in loads)


def between(f: Function, at: str, start: int, end: int) -> str:
    """Whether an index lies in a segment, as an i1."""
    low, high = f.let(f"icmp sge i64 {at}, {start}"), f.let(f"icmp slt i64 {at}, {end}")
    return f.let(f"and i1 {low}, {high}")


def _range(g: Inside, axis: str) -> tuple[int, int] | None:
    """The indices of the axis that pass; None where other things matter."""
    lo, hi, shift = g.lo, g.hi, g.index.const
    if g.index.terms != ((axis, 1),):
        return None
    if not (isinstance(lo, int) and isinstance(hi, int) and isinstance(shift, int)):
        return None
    return lo - shift, hi - shift


def _outcome(bounds: tuple[int, int] | None, start: int, end: int) -> bool | None:
    if bounds is None:
        return None
    lo, hi = bounds
    if end <= lo or start >= hi:
        return False
    return True if lo <= start and end <= hi else None
