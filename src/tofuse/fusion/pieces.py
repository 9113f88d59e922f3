"""Under what guards the pieces of a join are computed, and which values need none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

from tofuse.ir.graph import Op, Value


@dataclass(frozen=True)
class Guard:
    """Says where a piece is, along `axes` and under the guard `outer`.

    A piece of one element has no loop: such a guard, which is `single`, says when it is computed at
    all. Values in `common` are of several pieces of the join, as what a stack's pieces are made of.
    """

    axes: frozenset[str]
    outer: str | None
    single: bool
    common: Set[Value]


def needed(
    guards: Mapping[str, Guard], guard: str | None, value: Value, axes: Set[str]
) -> str | None:
    """The guard of a value that runs over these loops, of which one of other loops says nothing.

    What is read once for a whole piece then leaves the loop along it, and what pieces of one
    element have in common is computed once for all of them.
    """
    while guard is not None:
        g = guards[guard]
        if not g.axes or not g.axes.isdisjoint(axes):
            return guard
        if g.single and value not in g.common:
            return guard
        guard = g.outer
    return None


def common_values(join: Op, producers: Mapping[Value, Op]) -> frozenset[Value]:
    """The values that several pieces of a join are made of, those from outside included."""
    found: Counter[Value] = Counter()
    for piece in dict.fromkeys(join.inputs):
        seen, work = {piece}, [piece]
        while work:
            source = producers.get(work.pop())
            new = [v for v in source.inputs if v not in seen] if source is not None else []
            seen.update(new)
            work += new
        found.update(seen)
    return frozenset(v for v, times in found.items() if times > 1)
