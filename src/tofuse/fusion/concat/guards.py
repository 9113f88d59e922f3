"""Under what guards the pieces of a join are computed, and which values need none of them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from tofuse.ir.dims import Dim
from tofuse.ir.graph import Op, Value
from tofuse.ir.kernel import Affine
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


@dataclass(eq=False)
class Pieces:
    """The guards of a region's joins, by name, and what the pieces of these have in common."""

    ops: Sequence[Op]
    guards: dict[str, Guard] = field(default_factory=dict)
    common: dict[Op, frozenset[Value]] = field(default_factory=dict)

    def guard(self, name: str, join: Op, index: Affine, outer: str | None, single: bool) -> None:
        """Take note of a guard of a piece of `join`, along the axes of `index`."""
        if join not in self.common:
            self.common[join] = self._common_values(join)
        axes = frozenset(index.axes)
        self.guards[name] = Guard(axes, outer, single, self.common[join])

    def needed(self, guard: str | None, value: Value, axes: Set[str]) -> str | None:
        """The guard of a value that runs over these loops; one of other loops says nothing of it.

        What is read once for a whole piece then leaves the loop along it, and what pieces of one
        element have in common is computed once for all of them.
        """
        while guard is not None:
            g = self.guards[guard]
            if not g.axes or not g.axes.isdisjoint(axes):
                return guard
            if g.single and value not in g.common:
                return guard
            guard = g.outer
        return None

    def _common_values(self, join: Op) -> frozenset[Value]:
        """The dear values that several pieces of a join are made of."""
        found: Counter[Value] = Counter()
        for piece in dict.fromkeys(join.inputs):
            seen, work = {piece}, [piece]
            while work:
                source = self._producers.get(work.pop())
                new = [v for v in source.inputs if v not in seen] if source is not None else []
                seen.update(new)
                work += new
            found.update(seen)
        return frozenset(v for v, times in found.items() if times > 1 and v in self._dear)

    @functools.cached_property
    def _producers(self) -> dict[Value, Op]:
        return {op.result: op for op in self.ops}

    @functools.cached_property
    def _dear(self) -> frozenset[Value]:
        """Values worth computing once for several pieces; less is done again in each, and keeps the
        guards by which loops are cut into segments. Most regions have no join to ask for them."""
        work: dict[Value, float] = {}
        for op in self.ops:
            total = opdef(op.kind).cost + sum(work.get(v, 0.0) for v in op.inputs)
            work[op.result] = min(DEAR, total)
        return frozenset(v for v, total in work.items() if total >= DEAR)


def start_of(join: Op, k: int, d: int) -> Dim:
    """Where the k-th operand of a cat or a padding begins along a dimension."""
    if join.kind == "pad":
        return join.dims("low")[d]
    return sum((x.shape[d] for x in join.inputs[:k]), 0)


def passes(index: Affine, start: Dim, stop: Dim, extents: Mapping[str, Dim]) -> bool | None:
    """Whether an index is always in a range, or never; None where the loops or the sizes tell."""
    low = high = index.const
    for axis, step in index.terms:
        if not isinstance(step, int):
            return None
        last = (extents[axis] - 1) * step
        low, high = (low, high + last) if step > 0 else (low + last, high)
    known = [d for d in (low, high, start, stop) if isinstance(d, int)]
    if len(known) < 4 or known[0] > known[1]:
        return None
    least, most, first, after = known
    if least >= first and most < after:
        return True
    return False if most < first or least >= after else None
