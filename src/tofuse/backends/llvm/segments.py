"""Where along the vector axis guards are known: a loop over pieces of a cat has no masks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tofuse.ir.kernel import Inside
from tofuse.ir.loops import Do, For

MOST = 6  # segments of one loop; each is compiled by itself


@dataclass(frozen=True)
class Segment:
    """From `start` up to `end`, where these guards pass in every lane or in none."""

    start: int
    end: int
    known: dict[str, bool]


def segments(node: For, extent: int, step: int) -> list[Segment]:
    """A vector loop from 0 in pieces that start at multiples of `step`."""
    guards = [n.stmt for n in node.body if isinstance(n, Do) and isinstance(n.stmt, Inside)]
    ranges = {g.name: _range(g, node.loop.axis) for g in guards}
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
            outer = known.get(g.guard) if g.guard is not None else True
            if inside is False or outer is False:
                known[g.name] = False
            elif inside and outer:
                known[g.name] = True
        if found and found[-1].known == known:
            found[-1] = Segment(found[-1].start, end, known)
        else:
            found.append(Segment(start, end, known))
    return found if 1 <= len(found) <= MOST else [Segment(0, extent, {})]


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
