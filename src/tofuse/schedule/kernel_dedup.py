"""Kernels alike but for numbers -> one kernel that takes the numbers that differ as arguments.

Those are sizes, and the streams that random numbers are drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tofuse.ir.dims import Dim, symbol
from tofuse.ir.kernel import (
    Affine,
    Axis,
    Compute,
    Inside,
    Kernel,
    Reduce,
    Stmt,
    Take,
    Uniform,
    affine,
)
from tofuse.ir.schedule import Schedule

Place = Callable[[Dim], Dim]  # what stands in the place of a size; called in a fixed order


@dataclass(frozen=True, eq=False)
class Shared:
    """A kernel that does the work of several, and the numbers with which it does that of one."""

    kernel: Kernel
    schedule: Schedule
    sizes: tuple[Dim, ...]


def share(kernels: Sequence[tuple[Kernel, Schedule]]) -> list[Shared]:
    """For each kernel one that does its work; kernels alike get the same object."""
    families: dict[str, list[int]] = {}
    for k, (kernel, schedule) in enumerate(kernels):
        families.setdefault(_likeness(kernel, schedule), []).append(k)
    found: dict[int, Shared] = {}
    for members in families.values():
        kernel, schedule = kernels[members[0]]
        columns = list(zip(*(_numbers(kernels[k][0]) for k in members), strict=True))
        differ = tuple(dict.fromkeys(c for c in columns if len(set(c)) > 1))
        general = _lifted(kernel, columns, differ)
        for n, k in enumerate(members):
            known = [symbol(s) for s in kernel.symbols]
            found[k] = Shared(general, schedule, (*known, *(c[n] for c in differ)))
    return [found[k] for k in range(len(kernels))]


def _likeness(kernel: Kernel, schedule: Schedule) -> str:
    """Equal for kernels that may share machine code.

    Sizes may differ where that costs nothing: in a single loop, whose text is the same for any.
    Several loops are others for other sizes: how long sums are taken, which tiles are turned.
    """
    anonymous = _with_numbers(replace(kernel, name="kernel"), lambda d: symbol("any"))
    return f"{anonymous!r} {schedule!r}"


def _sizes_count(kernel: Kernel) -> bool:
    """Whether sizes of a kernel may become arguments."""
    random = any(isinstance(s, Uniform) for s in kernel.body)
    return len(kernel.axes) == 1 and not kernel.symbols and not random


def _fixed(dim: Dim) -> bool:
    """Whether it says what is computed, rather than how much of it."""
    return not isinstance(dim, int) or dim < 2


def _numbers(kernel: Kernel) -> tuple[Dim, ...]:
    """The numbers that may differ, in the order in which they stand."""
    found: list[Dim] = []

    def note(dim: Dim) -> Dim:
        found.append(dim)
        return dim

    _with_numbers(kernel, note)
    return tuple(found)


def _lifted(
    kernel: Kernel, columns: Sequence[tuple[Dim, ...]], differ: Sequence[tuple[Dim, ...]]
) -> Kernel:
    """The kernel with an argument for each number in which its like differ."""
    if not differ:
        return kernel
    names = {column: f"n{k}" for k, column in enumerate(differ)}
    places = iter(columns)

    def place(dim: Dim) -> Dim:
        column = next(places)
        return symbol(names[column]) if column in names else dim

    symbols = (*kernel.symbols, *names.values())
    return replace(_with_numbers(kernel, place), symbols=symbols)


def _with_numbers(kernel: Kernel, place: Place) -> Kernel:
    """The kernel with every number replaced that may differ, in the order in which they stand."""
    if _sizes_count(kernel):
        return _with_sizes(kernel, lambda d: d if _fixed(d) else place(d))
    drawn = [
        replace(s, stream=place(s.stream)) if isinstance(s, Uniform) else s for s in kernel.body
    ]
    return replace(kernel, body=tuple(drawn))


def _with_sizes(kernel: Kernel, place: Place) -> Kernel:
    """The kernel with every size replaced."""
    axes = tuple(Axis(a.name, place(a.extent)) for a in kernel.axes)
    return replace(kernel, axes=axes, body=tuple(_stmt_with(s, place) for s in kernel.body))


def _stmt_with(stmt: Stmt, place: Place) -> Stmt:
    match stmt:
        case Compute() | Uniform():
            return stmt
        case Reduce():
            at = stmt.position
            return stmt if at is None else replace(stmt, position=_index_with(at, place))
        case Take():
            index = _index_with(stmt.index, place)
            return replace(stmt, index=index, stride=place(stmt.stride), extent=place(stmt.extent))
        case Inside():
            index = _index_with(stmt.index, place)
            return replace(stmt, index=index, lo=place(stmt.lo), hi=place(stmt.hi))
        case _:
            return replace(stmt, index=_index_with(stmt.index, place))


def _index_with(index: Affine, place: Place) -> Affine:
    return affine([(a, place(c)) for a, c in index.terms], place(index.const))
