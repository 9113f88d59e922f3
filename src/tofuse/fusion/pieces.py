"""Under what guards the pieces of a join are computed, and which values need none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from tofuse.ir.graph import Op, Value
from tofuse.ops.table import opdef

DEAR = 8.0  # additions an element


@dataclass(frozen=True)
class Guard:
    """Says where a piece is, along `axes` and under the guard `outer`.

    A piece of one element has no loop: such a guard, which is `single`, says when it is computed at
    all. Values in `common` are part of several pieces of the join, as of a stack's.
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


def common_values(join: Op, producers: Mapping[Value, Op], dear: Set[Value]) -> frozenset[Value]:
    """The values in `dear` that several pieces of a join are made of."""
    found: Counter[Value] = Counter()
    for piece in dict.fromkeys(join.inputs):
        seen, work = {piece}, [piece]
        while work:
            source = producers.get(work.pop())
            new = [v for v in source.inputs if v not in seen] if source is not None else []
            seen.update(new)
            work += new
        found.update(seen)
    return frozenset(v for v, times in found.items() if times > 1 and v in dear)


def dear_values(ops: Iterable[Op]) -> frozenset[Value]:
    """Those that are worth computing once for several pieces; less is done again in each, and keeps
    the guards by which loops are cut into segments."""
    work: dict[Value, float] = {}
    for op in ops:
        total = opdef(op.kind).cost + sum(work.get(v, 0.0) for v in op.inputs)
        work[op.result] = min(DEAR, total)
    return frozenset(v for v, total in work.items() if total >= DEAR)
