"""Merge kernels that differ in numbers only into one kernel with these numbers as arguments.

The numbers are sizes, where operands begin, and the streams of random generators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Union

from tofuse.ir.affine import AffineExpr, make_affine
from tofuse.ir.dims import Dim, symbol
from tofuse.ir.kernel import Axis, Gather, Kernel, Load, Reduce, Stmt, Uniform
from tofuse.ir.schedule import BlockedSchedule, ChainSchedule, Schedule
from tofuse.ir.statement import StatementMap

AnySchedule = Union[Schedule, BlockedSchedule, ChainSchedule]  # noqa: UP007
ReplaceDim = Callable[[Dim], Dim]  # called for the parameters of a kernel in a fixed order
ReplaceParameters = Callable[[Kernel, ReplaceDim], Kernel]


@dataclass(frozen=True, eq=False)
class DedupedKernel:
    """A kernel that may be shared, and the size arguments that make it one of the originals."""

    kernel: Kernel
    schedule: AnySchedule
    sizes: tuple[Dim, ...]


def kernel_dedup(kernels: Sequence[tuple[Kernel, AnySchedule]]) -> list[DedupedKernel]:
    """Return for each kernel one that does its work; equivalent kernels get the same object."""
    schedules = [schedule for _, schedule in kernels]
    shared = _merge([k for k, _ in kernels], list(map(repr, schedules)), _replace_parameters)
    pairs = zip(shared, schedules, strict=True)
    return [DedupedKernel(kernel, schedule, sizes) for (kernel, sizes), schedule in pairs]


def merge_gpu_kernels(kernels: Sequence[Kernel]) -> list[tuple[Kernel, tuple[Dim, ...]]]:
    """Return for each kernel one that does its work, and its size arguments.

    Kernels that differ only in random streams, or in where their operands begin, get the same
    object, and so do kernels of one axis without reductions that differ in sizes. Elsewhere the
    code for a GPU depends on sizes.
    """
    return _merge(kernels, [""] * len(kernels), _replace_parameters_on_gpu)


def _merge(
    kernels: Sequence[Kernel], keys: Sequence[str], replace_parameters: ReplaceParameters
) -> list[tuple[Kernel, tuple[Dim, ...]]]:
    """Return for each kernel the shared one of its key and structure, and its size arguments."""
    groups: dict[str, list[int]] = {}
    parameters: list[tuple[Dim, ...]] = []
    for k, (kernel, key) in enumerate(zip(kernels, keys, strict=True)):
        structure, found = _split_parameters(kernel, replace_parameters)
        parameters.append(found)
        groups.setdefault(f"{structure!r} {key}", []).append(k)
    merged: dict[int, tuple[Kernel, tuple[Dim, ...]]] = {}
    for members in groups.values():
        kernel = kernels[members[0]]
        columns = list(zip(*(parameters[k] for k in members), strict=True))
        varying = tuple(dict.fromkeys(c for c in columns if len(set(c)) > 1))
        shared = _parametrize(kernel, columns, varying, replace_parameters)
        symbols = [symbol(s) for s in kernel.symbols]
        for n, k in enumerate(members):
            merged[k] = shared, (*symbols, *(c[n] for c in varying))
    return [merged[k] for k in range(len(kernels))]


def _split_parameters(
    kernel: Kernel, replace_parameters: ReplaceParameters
) -> tuple[Kernel, tuple[Dim, ...]]:
    """Return a kernel that is equal for all that may share machine code, and the numbers removed.

    Sizes may differ in a kernel of one loop, whose machine code is the same for all sizes. With
    several loops the code depends on the sizes, for example in the stages of long sums.
    """
    found: list[Dim] = []

    def record(dim: Dim) -> Dim:
        found.append(dim)
        return symbol("any")

    return replace_parameters(replace(kernel, name="kernel"), record), tuple(found)


def _may_parametrize_sizes(kernel: Kernel) -> bool:
    """Whether sizes of a kernel may become arguments."""
    random = any(isinstance(s, Uniform) for s in kernel.body)
    return len(kernel.axes) == 1 and not kernel.symbols and not random


def _parametrize(
    kernel: Kernel,
    columns: Sequence[tuple[Dim, ...]],
    varying: Sequence[tuple[Dim, ...]],
    replace_parameters: ReplaceParameters,
) -> Kernel:
    """Return the kernel with a size argument for each column of parameters that varies."""
    if not varying:
        return kernel
    names = {column: f"n{k}" for k, column in enumerate(varying)}
    remaining = iter(columns)

    def to_argument(dim: Dim) -> Dim:
        column = next(remaining)
        return symbol(names[column]) if column in names else dim

    symbols = (*kernel.symbols, *names.values())
    return replace(replace_parameters(kernel, to_argument), symbols=symbols)


def _replace_parameters(kernel: Kernel, replace_dim: ReplaceDim) -> Kernel:
    """Return the kernel with every number replaced that may differ, in a fixed order."""
    if _may_parametrize_sizes(kernel):
        # a size below 2 is part of the structure
        return _replace_sizes(
            kernel, lambda d: replace_dim(d) if isinstance(d, int) and d >= 2 else d
        )
    return _replace_streams_and_offsets(kernel, replace_dim)


def _replace_parameters_on_gpu(kernel: Kernel, replace_dim: ReplaceDim) -> Kernel:
    if any(isinstance(s, Reduce) for s in kernel.body):
        return _replace_streams_and_offsets(kernel, replace_dim)
    return _replace_parameters(kernel, replace_dim)


def _replace_streams_and_offsets(kernel: Kernel, replace_dim: ReplaceDim) -> Kernel:
    """Replace the streams, and where loads begin. Stores stay: some must be aligned."""

    def replaced(s: Stmt) -> Stmt:
        match s:
            case Uniform():
                return replace(s, stream=replace_dim(s.stream))
            case Load() | Gather():
                return replace(s, index=make_affine(s.index.terms, replace_dim(s.index.const)))
        return s

    return replace(kernel, body=tuple(map(replaced, kernel.body)))


def _replace_sizes(kernel: Kernel, replace_dim: ReplaceDim) -> Kernel:
    def replace_index(index: AffineExpr) -> AffineExpr:
        terms = [(a, replace_dim(c)) for a, c in index.terms]
        return make_affine(terms, replace_dim(index.const))

    axes = tuple(Axis(a.name, replace_dim(a.extent)) for a in kernel.axes)
    sizes = StatementMap(index=replace_index, dim=replace_dim)
    return replace(kernel, axes=axes, body=tuple(s.map(sizes) for s in kernel.body))
