"""Index-set splitting: cut a loop where guards change, so that each segment knows its guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tofuse.analysis.guard_ranges import passing_indices
from tofuse.backends.cpu.cost.guard_coverage import pays_to_split
from tofuse.ir.kernel import InRange, Load
from tofuse.ir.nest import Node, StmtNode


@dataclass(frozen=True)
class Segment:
    """Iterations from `start` up to `end`; `guards` maps those that all lanes pass, or no lane."""

    start: int
    end: int
    guards: dict[str, bool]


def split_index_set(
    nodes: Sequence[Node], axis: str, extent: int, step: int, outer_guards: Mapping[str, bool]
) -> list[Segment]:
    """Cut a loop from 0 to `extent` into segments that start at multiples of `step`.

    `outer_guards` are the guards known from the loops around it. Return one segment without known
    guards if there would be too many.
    """
    guard_stmts = [n.stmt for n in nodes if isinstance(n, StmtNode) and isinstance(n.stmt, InRange)]
    ranges = {g.name: passing_indices(g, axis) for g in guard_stmts}
    cuts = {0, extent}
    for bounds in ranges.values():
        for b in bounds or ():
            cuts |= {b // step * step, -(-b // step) * step}
    ends = sorted(c for c in cuts if 0 <= c <= extent)
    found: list[Segment] = []
    for start, end in pairwise(ends):
        guards: dict[str, bool] = {}
        for g in guard_stmts:
            inside = _guard_outcome(ranges[g.name], start, end)
            outer = True if g.guard is None else guards.get(g.guard, outer_guards.get(g.guard))
            if inside is False or outer is False:
                guards[g.name] = False
            elif inside and outer:
                guards[g.name] = True
        if found and found[-1].guards == guards:
            found[-1] = Segment(found[-1].start, end, guards)
        else:
            found.append(Segment(start, end, guards))
    few = pays_to_split(len(found), sum(_count_loads(nodes, s.guards) for s in found))
    return found if found and few else [Segment(0, extent, {})]


def _count_loads(nodes: Sequence[Node], guards: Mapping[str, bool]) -> int:
    """Return the number of loads left in a body, plus one for the rest of it."""
    stmts = [n.stmt for n in nodes if isinstance(n, StmtNode)]
    loads = [s for s in stmts if isinstance(s, Load)]
    return 1 + sum(s.guard is None or guards.get(s.guard, True) for s in loads)


def _guard_outcome(bounds: tuple[int, int] | None, start: int, end: int) -> bool | None:
    """Return True if all of the segment passes the guard, False if nothing does, None otherwise."""
    if bounds is None:
        return None
    lo, hi = bounds
    if end <= lo or start >= hi:
        return False
    return True if lo <= start and end <= hi else None
