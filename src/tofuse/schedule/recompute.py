"""The cost of recomputing values, and the loop-invariant values worth hoisting into an array."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Union

from tofuse.cost.thresholds import STRIDED_LOAD_COST
from tofuse.ir.kernel import (
    Compute,
    InRange,
    Iota,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    iteration_axes,
)
from tofuse.ir.nest import Reload
from tofuse.ir.schedule import Schedule
from tofuse.ops.table import opdef
from tofuse.schedule.backward_slice import backward_slice
from tofuse.schedule.loop_placement import NestStmt

Hoistable = Union[Compute, Load]  # noqa: UP007


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
            return opdef(stmt.op).cost
        case _:
            return 20.0


def loop_invariants(
    stmts: Sequence[NestStmt],
    varies: Callable[[NestStmt], bool],
    spill: Callable[[Hoistable, set[str]], bool],
) -> tuple[set[NestStmt], set[NestStmt]]:
    """Return the invariant values that a loop reads and `spill` accepts; and all they depend on.

    `spill` gets a value and the names of the statements that compute it.
    """
    by_name: dict[str, NestStmt] = {s.name: s for s in stmts if not isinstance(s, Store)}
    read = {u for s in stmts if varies(s) for u in s.uses}
    hoisted: set[NestStmt] = set()
    needed: set[NestStmt] = set()
    for s in stmts:
        if not isinstance(s, (Compute, Load)) or s.name not in read or varies(s):
            continue
        slice_ = backward_slice([s], by_name)
        movable = all(isinstance(d, (Compute, Load, Iota, InRange, Reload)) for d in slice_)
        if movable and spill(s, {d.name for d in slice_ if not isinstance(d, (Reload, Store))}):
            hoisted.add(s)
            needed.update(slice_)
    return hoisted, needed


def recompute_iteration_axes(
    kernel: Kernel, schedule: Schedule
) -> tuple[Mapping[str, frozenset[str]], Mapping[Stmt, frozenset[str]]]:
    """Return `iteration_axes`, but with inner reductions repeated in all loops around them."""
    value_axes, stmt_axes = ({**m} for m in iteration_axes(kernel))
    loop_axes = [lp.axis for lp in schedule.loops]
    for s in kernel.body:
        stmt_axes[s] |= frozenset().union(*(value_axes[u] for u in s.uses))
        if isinstance(s, Reduce):
            start = min(loop_axes.index(a) for a in s.over)
            if start >= schedule.parallel:  # all loops outside, except tile loops of inner axes
                stmt_axes[s] |= frozenset(loop_axes[:start]) - frozenset(loop_axes[start:])
            value_axes[s.name] = stmt_axes[s] - frozenset(s.over)
        elif not isinstance(s, Store):
            value_axes[s.name] = stmt_axes[s]
    return value_axes, stmt_axes
