"""What it takes to compute values again, and which are worth an array instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Union

from tofuse.ir.kernel import (
    Compute,
    Inside,
    Iota,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    iteration_axes,
)
from tofuse.ir.nest import Restore
from tofuse.ir.schedule import Schedule
from tofuse.ops.table import opdef

Item = Union[Stmt, Restore]  # noqa: UP007
Kept = Union[Compute, Load]  # noqa: UP007


SPACED = 8.0  # what a vector of elements that do not lie side by side costs


def statement_cost(stmt: Stmt, along: str) -> float:
    """Additions that a statement takes as long as, in vectors along an axis."""
    match stmt:
        case Load() if stmt.index.coefficient(along) not in (0, 1):
            return SPACED
        case Load() | Iota() | Inside() | Store():
            return 0.5
        case Compute() if stmt.op.startswith("round"):
            return 2.0
        case Compute():
            return opdef(stmt.op).cost
        case _:
            return 20.0


def unchanged(
    items: Sequence[Item],
    changes: Callable[[Item], bool],
    keep: Callable[[Kept, set[str]], bool],
) -> tuple[set[Item], set[Item]]:
    """Values that a loop reads and does not change, where `keep` gives them an array.

    `keep` is told of the statements that compute a value. Returned are those values, and with them
    all that they need.
    """
    by_name = {s.name: s for s in items if not isinstance(s, Store)}
    read = {u for s in items if changes(s) for u in s.uses}
    kept: set[Item] = set()
    needed: set[Item] = set()
    for s in items:
        if not isinstance(s, (Compute, Load)) or s.name not in read or changes(s):
            continue
        chain, work = {s.name}, [s.name]
        while work:
            new = [u for u in by_name[work.pop()].uses if u in by_name and u not in chain]
            chain |= set(new)
            work += new
        makers = [by_name[n] for n in chain]
        plain = all(isinstance(m, (Compute, Load, Iota, Inside, Restore)) for m in makers)
        if plain and keep(s, {m.name for m in makers if not isinstance(m, Restore)}):
            kept.add(s)
            needed.update(makers)
    return kept, needed


def repeated_axes(
    kernel: Kernel, schedule: Schedule
) -> tuple[Mapping[str, frozenset[str]], Mapping[Stmt, frozenset[str]]]:
    """`iteration_axes` of a kernel whose inner reductions depend on all loops around them."""
    values, runs = ({**m} for m in iteration_axes(kernel))
    names = [lp.axis for lp in schedule.loops]
    for s in kernel.body:
        runs[s] |= frozenset().union(*(values[u] for u in s.uses))
        if isinstance(s, Reduce):
            opens = min(names.index(a) for a in s.over)
            if opens >= schedule.parallel:  # what is outside, tiles and all
                runs[s] |= frozenset(names[:opens]) - frozenset(names[opens:])
            values[s.name] = runs[s] - frozenset(s.over)
        elif not isinstance(s, Store):
            values[s.name] = runs[s]
    return values, runs
