"""Guards under which a kernel computes the operands of a concat, and which values need them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from tofuse.analysis.reachability import reachable
from tofuse.cost.thresholds import EXPENSIVE_OPERAND
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Op, Value
from tofuse.ops.table import OPS


@dataclass(frozen=True)
class OperandGuard:
    """The test that an index along `axes` is in an operand's slice, nested in the guard `outer`.

    An operand of one element has no loop: its guard, with `single_element`, decides whether the
    operand is computed at all. `shared` are expensive values that several operands depend on.
    """

    axes: frozenset[str]
    outer: str | None
    single_element: bool
    shared: Set[Value]


@dataclass(eq=False)
class ConcatGuards:
    """The guards of a region's concats and pads, by name."""

    producers: Mapping[Value, Op]  # of the region's values, in its order
    guards: dict[str, OperandGuard] = field(default_factory=dict)
    shared: dict[Op, frozenset[Value]] = field(default_factory=dict)  # by concat

    def add(
        self, name: str, concat: Op, index: AffineExpr, outer: str | None, single_element: bool
    ) -> None:
        """Add the guard of an operand of `concat`, which tests `index`."""
        if concat not in self.shared:
            self.shared[concat] = self._shared_values(concat)
        axes = frozenset(index.axes)
        self.guards[name] = OperandGuard(axes, outer, single_element, self.shared[concat])

    def required(self, guard: str | None, value: Value, axes: Set[str]) -> str | None:
        """Return the innermost guard that applies to a value computed in these loops.

        Guards along other loops do not apply, so a value that is the same for a whole operand
        leaves the loop along it. Shared values need no guard of a single element, so they are
        computed once for all such operands.
        """
        while guard is not None:
            g = self.guards[guard]
            if not g.axes or not g.axes.isdisjoint(axes):
                return guard
            if g.single_element and value not in g.shared:
                return guard
            guard = g.outer
        return None

    def _shared_values(self, concat: Op) -> frozenset[Value]:
        """Return the expensive values that several operands of a concat depend on."""
        counts: Counter[Value] = Counter()
        for operand in dict.fromkeys(concat.inputs):
            counts.update(list(reachable([operand], self._operands)))
        return frozenset(v for v, count in counts.items() if count > 1 and v in self._expensive)

    def _operands(self, v: Value) -> tuple[Value, ...]:
        return self.producers[v].inputs if v in self.producers else ()

    @functools.cached_property
    def _expensive(self) -> frozenset[Value]:
        """The values worth computing once for several operands.

        Cheaper ones are recomputed for each operand and keep the guards by which loops are split
        into segments. Lazy, because most regions have no concat.
        """
        costs: dict[Value, float] = {}
        for op in self.producers.values():
            total = OPS[op.kind].cost + sum(costs.get(v, 0.0) for v in op.inputs)
            costs[op.result] = min(EXPENSIVE_OPERAND, total)
        return frozenset(v for v, total in costs.items() if total >= EXPENSIVE_OPERAND)


def operand_start(concat: Op, k: int, dim: int) -> Dim:
    """Return where the k-th operand of a concat or pad begins along a dimension of the result."""
    if concat.kind == "pad":
        return concat.dims("low")[dim]
    return sum((x.shape[dim] for x in concat.inputs[:k]), 0)


def is_in_range(
    index: AffineExpr, start: Dim, stop: Dim, extents: Mapping[str, Dim]
) -> bool | None:
    """Whether an index is always in a range, or never; None if it depends on loops or sizes."""
    low = high = index.const
    for axis, step in index.terms:
        if not isinstance(step, int):
            return None
        last = (extents[axis] - 1) * step
        low, high = (low, high + last) if step > 0 else (low + last, high)
    static = [d for d in (low, high, start, stop) if isinstance(d, int)]
    if len(static) < 4 or static[0] > static[1]:
        return None
    least, most, first, after = static
    if least >= first and most < after:
        return True
    return False if most < first or least >= after else None
