"""How much of a kernel's loops each statement is for, where guards tell pieces of a cat apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from tofuse.ir.dims import hint
from tofuse.ir.kernel import Affine, Compute, Inside, Kernel, Load, Reduce, Stmt, Store, Take

MOST = 12  # segments that a loop is cut into; one of more has masks, and does all everywhere
Part = tuple[str, int, int]  # of an axis, from, up to


def shares(kernel: Kernel, axes: Sequence[str]) -> dict[Stmt, float]:
    """The part of an axis in which a statement's result is used; 1 for those not named.

    A loop over the first of the axes that has guards runs in segments in which these are known.
    What only one side of a `where` needs is dead in the segments of the other.
    """
    parts = {s.name: _part(s, kernel) for s in kernel.body if isinstance(s, Inside)}
    guarded = {part[0] for part in parts.values() if part is not None}
    axis = next((a for a in axes if a in guarded), None)
    if axis is None:
        return {}
    guards = {name: p for name, p in parts.items() if p is not None and p[0] == axis}
    extent = hint(kernel.extent(axis))
    cuts = sorted({0, extent, *(c for _, *ends in guards.values() for c in ends)})
    segments = list(pairwise(cuts))
    if len(segments) > MOST:
        return {}
    everywhere = frozenset(range(len(segments)))
    inside = {
        name: frozenset(k for k, (a, b) in enumerate(segments) if lo <= a and b <= hi)
        for name, (_, lo, hi) in guards.items()
    }
    needed: dict[str, frozenset[int]] = {}
    found: dict[Stmt, float] = {}
    for s in reversed(kernel.body):
        own = everywhere if isinstance(s, (Store, Reduce)) else needed.get(s.name, frozenset())
        if isinstance(s, (Load, Take)) and s.guard in inside:
            own &= inside[s.guard]
        for name, where in _wanted(s, own, inside).items():
            needed[name] = needed.get(name, frozenset()) | where
        found[s] = sum(segments[k][1] - segments[k][0] for k in own) / extent
    return found


def _wanted(
    s: Stmt, own: frozenset[int], inside: Mapping[str, frozenset[int]]
) -> dict[str, frozenset[int]]:
    """The segments in which a statement needs each value."""
    if isinstance(s, Compute) and s.op == "where" and s.args[0] in inside:
        test, yes, no = s.args
        known = inside[str(test)]
        found = {str(test): own}
        for arg, where in ((yes, own & known), (no, own - known)):
            if isinstance(arg, str):
                found[arg] = found.get(arg, frozenset()) | where
        return found
    return dict.fromkeys(s.uses, own)


@lru_cache(maxsize=8)
def touched(kernel: Kernel) -> Mapping[str, float]:
    """For buffers whose accesses are all guarded the part of the points that touch elements of
    their own. Accesses of one guard length that start together are one."""
    guards = {s.name: s for s in kernel.body if isinstance(s, Inside)}
    reach = {n: _part(g, kernel) if g.guard is None else None for n, g in guards.items()}
    found: dict[str, dict[tuple[object, ...], float]] = {}
    for s in kernel.body:
        if not isinstance(s, (Load, Store)):
            continue
        part = reach.get(s.guard) if isinstance(s, Load) and s.guard is not None else None
        parts = found.setdefault(s.buffer, {})
        if part is None:
            parts[()] = 1.0
            continue
        axis, lo, hi = part
        start = s.index.const + s.index.coefficient(axis) * lo
        parts[repr(start), s.index.terms] = (hi - lo) / max(1, hint(kernel.extent(axis)))
    return {name: min(1.0, sum(parts.values())) for name, parts in found.items()}


def _part(guard: Inside, kernel: Kernel) -> Part | None:
    """The indices of one axis that pass; None where other things matter."""
    index: Affine = guard.index
    if len(index.terms) != 1 or index.terms[0][1] != 1:
        return None
    axis = index.terms[0][0]
    if not all(isinstance(d, int) for d in (guard.lo, guard.hi, index.const, kernel.extent(axis))):
        return None
    shift, extent = hint(index.const), hint(kernel.extent(axis))
    lo, hi = max(0, hint(guard.lo) - shift), min(extent, hint(guard.hi) - shift)
    return (axis, lo, hi) if lo < hi else None
