"""The cost of recomputing values, and the loops in which reductions are repeated."""

from __future__ import annotations

from collections.abc import Mapping

from tofuse.cost.thresholds import STRIDED_LOAD_COST
from tofuse.ir.dims import known_positive
from tofuse.ir.kernel import (
    WRITES,
    Compute,
    InRange,
    Iota,
    Kernel,
    Load,
    Reduce,
    Scatter,
    Stmt,
    Store,
    iteration_axes,
)
from tofuse.ir.rules import Rule
from tofuse.ir.schedule import Schedule
from tofuse.ops.table import OPS
from tofuse.schedule.schedule_legality import Unschedulable


def statement_cost(stmt: Stmt, vector_axis: str) -> float:
    """Return the cost of a statement in additions, if it runs in vectors along an axis."""
    match stmt:
        case Load() if stmt.index.coefficient(vector_axis) not in (0, 1):
            return STRIDED_LOAD_COST
        case Load() | Iota() | InRange() | Store():
            return 0.5
        case Compute() if stmt.op.startswith("round"):
            return 2.0
        case Compute():
            return OPS[stmt.op].cost
        case _:
            return 20.0


def recompute_iteration_axes(
    kernel: Kernel, schedule: Schedule
) -> tuple[Mapping[str, frozenset[str]], Mapping[Stmt, frozenset[str]]]:
    """Return `iteration_axes`, but with inner reductions repeated in all loops around them.

    Raise Unschedulable if a store would be repeated in a loop that may have no iteration, or a
    scatter in any loop.
    """
    own_axes = iteration_axes(kernel)
    value_axes, stmt_axes = ({**m} for m in own_axes)
    loop_axes = [lp.axis for lp in schedule.loops]
    for s in kernel.body:
        stmt_axes[s] |= frozenset().union(*(value_axes[u] for u in s.uses))
        if isinstance(s, Reduce):
            start = min(loop_axes.index(a) for a in s.over)
            if start >= schedule.parallel:  # all loops outside, except tile loops of inner axes
                stmt_axes[s] |= frozenset(loop_axes[:start]) - frozenset(loop_axes[start:])
            value_axes[s.name] = stmt_axes[s] - frozenset(s.over)
        elif not isinstance(s, WRITES):
            value_axes[s.name] = stmt_axes[s]
        elif (repeated := stmt_axes[s] - own_axes[1][s]) and (
            isinstance(s, Scatter) or not all(known_positive(kernel.extent(a)) for a in repeated)
        ):
            raise Unschedulable(Rule.DIFFERENT_LOOPS())
    return value_axes, stmt_axes
