"""Accesses with gaps between the neighbours of an axis, as one colour of pixels, or all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Union

from tofuse.ir.dims import Dim, hint
from tofuse.ir.kernel import Affine, Kernel, Load, Stmt, Store

MOST = 32  # elements side by side
Access = Union[Load, Store]  # noqa: UP007


def is_between(kernel: Kernel, index: Affine, axis: str, along: str) -> bool:
    """Whether elements along an axis all lie between neighbours along another: c < 3 in 3*i + c,
    or in 9*i + 3*c."""
    count, gap, step = kernel.extent(axis), index.coefficient(axis), index.coefficient(along)
    if axis == along or not all(isinstance(n, int) for n in (count, gap, step)):
        return False
    return (
        hint(count) >= 2 and hint(gap) >= 1 and (hint(count) - 1) * hint(gap) < hint(step) <= MOST
    )


def shuffles(count: int) -> int:
    """Of each vector, to part or join rows of so many elements: by one prime factor at a time."""
    total, factor = 0, 2
    while count > 1:
        while count % factor == 0:
            total, count = total + factor - 1, count // factor
        factor += 1
    return total


def is_spaced(step: Dim, lanes: int) -> bool:
    """Whether vectors of every `step`-th element, backwards too, are picked from whole vectors:
    for less than what its elements cost one at a time."""
    return isinstance(step, int) and step not in (0, 1) and abs(step) <= max(1, lanes // 2)


def groups(stmts: Iterable[Stmt], along: str) -> dict[Access, tuple[Access, ...]]:
    """Reads, or writes, of all the elements from one neighbour along an axis to the next.

    The group, in the order in which its elements lie, is given with the first of its reads or the
    last of its writes, which does the work of all; with the others, nothing.
    """
    alike: dict[tuple[int, tuple[object, ...]], dict[int, Access]] = {}
    order: dict[Access, int] = {}
    for s in stmts:
        if isinstance(s, (Load, Store)):
            step, place = s.index.coefficient(along), s.index.const
            if isinstance(step, int) and 2 <= step <= MOST and isinstance(place, int):
                guard = s.guard if isinstance(s, Load) else None
                key = type(s), s.buffer, s.index.terms, guard
                alike.setdefault((step, key), {}).setdefault(place, s)
                order[s] = len(order)
    found: dict[Access, tuple[Access, ...]] = {}
    for (step, _), places in alike.items():
        end = min(places)
        for first in sorted(places):
            if first >= end and all(first + k in places for k in range(step)):
                members = tuple(places[first + k] for k in range(step))
                found |= dict.fromkeys(members, ())
                worker = min if isinstance(members[0], Load) else max
                found[worker(members, key=lambda s: order[s])] = members
                end = first + step
    return found
