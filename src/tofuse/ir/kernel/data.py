"""Kernel: what one fused loop nest computes, as statements over named axes, in no loop order yet.

A statement runs once for every point of the axes it depends on. Loads and stores address flat
buffers by affine functions of the axes, so that views have vanished. Loops, their order, tiles
and vectors are the schedule's business (`ir/schedule.py`, `ir/nest/data.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Union

from tofuse.ir.dims import Dim, SymDim, show_dim
from tofuse.ir.graph import Scalar
from tofuse.ir.types import DType


@dataclass(frozen=True)
class Affine:
    """`const + sum(coefficient * axis)`; terms sorted by axis, none zero."""

    terms: tuple[tuple[str, Dim], ...] = ()
    const: Dim = 0

    def __add__(self, other: Affine) -> Affine:
        return affine([*self.terms, *other.terms], self.const + other.const)

    def __mul__(self, factor: Dim) -> Affine:
        return affine([(a, c * factor) for a, c in self.terms], self.const * factor)

    def coefficient(self, axis: str) -> Dim:
        return next((c for a, c in self.terms if a == axis), 0)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a for a, _ in self.terms)

    def __repr__(self) -> str:
        parts = [a if c == 1 else f"({show_dim(c)})*{a}" for a, c in self.terms]
        if self.const != 0 or not parts:
            parts.append(show_dim(self.const))
        return " + ".join(parts)


def affine(terms: Iterable[tuple[str, Dim]], const: Dim = 0) -> Affine:
    """The canonical form of a sum of terms."""
    total: dict[str, Dim] = {}
    for axis, c in terms:
        total[axis] = total.get(axis, 0) + c
    return Affine(tuple(sorted((a, c) for a, c in total.items() if c != 0)), const)


@dataclass(frozen=True)
class Axis:
    """One dimension of the iteration space, from 0 up to `extent`."""

    name: str
    extent: Dim


@dataclass(frozen=True)
class Buffer:
    """Memory that the kernel reads ("in") or writes ("out", or "stream": past the caches).

    A "host" buffer holds a number or two in the CPU's memory, which a GPU kernel gets by value.
    """

    name: str
    dtype: DType
    role: str


Arg = Union[str, Scalar]  # noqa: UP007


@dataclass(frozen=True, eq=False)
class Load:
    """Read one element; where the guard is false, nothing is read and the value is zero."""

    name: str
    buffer: str
    index: Affine
    dtype: DType
    guard: str | None = None

    @cached_property
    def uses(self) -> tuple[str, ...]:
        """The names of values it reads; so of all statements."""
        return () if self.guard is None else (self.guard,)


@dataclass(frozen=True, eq=False)
class Take:
    """Read the element at `index + stride * by`; `by` out of [0, extent) reports an error."""

    name: str
    buffer: str
    index: Affine
    by: str
    stride: Dim
    extent: Dim
    wrap: bool
    dtype: DType
    guard: str | None = None

    @cached_property
    def uses(self) -> tuple[str, ...]:
        return (self.by,) if self.guard is None else (self.by, self.guard)


@dataclass(frozen=True, eq=False)
class Compute:
    """An elementwise op of `ops.table` on values and constants.

    `operand_dtype` is the type the arguments have, `dtype` the result's.
    """

    name: str
    op: str
    args: tuple[Arg, ...]
    dtype: DType
    operand_dtype: DType

    @cached_property
    def uses(self) -> tuple[str, ...]:
        return tuple(a for a in self.args if isinstance(a, str))


@dataclass(frozen=True, eq=False)
class Iota:
    """The value of an affine function of the axes."""

    name: str
    index: Affine
    dtype: DType

    @cached_property
    def uses(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Inside:
    """Whether `lo <= index < hi`, and `guard` too where there is one."""

    name: str
    index: Affine
    lo: Dim
    hi: Dim
    guard: str | None = None

    @property
    def dtype(self) -> DType:
        return DType.BOOL

    @cached_property
    def uses(self) -> tuple[str, ...]:
        return () if self.guard is None else (self.guard,)


@dataclass(frozen=True, eq=False)
class Uniform:
    """The uniform number of logical element (row, col) of a tensor with last extent `extent`."""

    name: str
    seed: str
    row: Affine
    col: Affine
    extent: Dim
    stream: Dim

    @property
    def dtype(self) -> DType:
        return DType.F32

    @cached_property
    def uses(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Reduce:
    """Combine `arg` over the axes `over`; `position` is what argmax and argmin give."""

    name: str
    op: str
    arg: str
    over: tuple[str, ...]
    dtype: DType
    position: Affine | None = None

    @cached_property
    def uses(self) -> tuple[str, ...]:
        return (self.arg,)


@dataclass(frozen=True, eq=False)
class Store:
    """Write one element."""

    buffer: str
    index: Affine
    value: Arg
    dtype: DType

    @cached_property
    def uses(self) -> tuple[str, ...]:
        return (self.value,) if isinstance(self.value, str) else ()


Definition = Union[Load, Take, Compute, Iota, Inside, Uniform, Reduce]  # noqa: UP007
Stmt = Union[Definition, Store]  # noqa: UP007


@dataclass(frozen=True, eq=False)
class Kernel:
    """Axes, buffers in argument order, size symbols in argument order, and the statements."""

    name: str
    axes: tuple[Axis, ...]
    buffers: tuple[Buffer, ...]
    symbols: tuple[str, ...]
    body: tuple[Stmt, ...]

    @cached_property
    def extents(self) -> Mapping[str, Dim]:
        return {a.name: a.extent for a in self.axes}

    def extent(self, axis: str) -> Dim:
        return self.extents[axis]

    def __repr__(self) -> str:
        return show_kernel(self)


def own_axes(stmt: Stmt) -> tuple[str, ...]:
    """The axes in a statement's own addresses."""
    match stmt:
        case Uniform():
            return stmt.row.axes + stmt.col.axes
        case Compute():
            return ()
        case Reduce():
            return () if stmt.position is None else stmt.position.axes
        case _:
            return stmt.index.axes


@lru_cache(maxsize=8)
def iteration_axes(
    kernel: Kernel,
) -> tuple[Mapping[str, frozenset[str]], Mapping[Stmt, frozenset[str]]]:
    """Per value name the axes it depends on, and per statement the axes it runs over.

    The two differ for a reduction: it runs over its operand's axes, its value depends on the rest.
    """
    values: dict[str, frozenset[str]] = {}
    runs: dict[Stmt, frozenset[str]] = {}
    for stmt in kernel.body:
        axes = frozenset(own_axes(stmt)).union(*(values[u] for u in stmt.uses))
        runs[stmt] = axes | frozenset(stmt.over) if isinstance(stmt, Reduce) else axes
        if not isinstance(stmt, Store):
            values[stmt.name] = axes - frozenset(stmt.over) if isinstance(stmt, Reduce) else axes
    return values, runs


def buffers_of(stmt: Stmt) -> tuple[str, ...]:
    """The buffers that a statement reads or writes."""
    match stmt:
        case Load() | Take() | Store():
            return (stmt.buffer,)
        case Uniform():
            return (stmt.seed,)
        case _:
            return ()


def stmt_dims(stmt: Stmt) -> list[Dim]:
    """Every size that occurs in a statement."""
    found: list[Dim] = []
    match stmt:
        case Uniform():
            indices = [stmt.row, stmt.col]
            found += [stmt.extent, stmt.stream]
        case Compute():
            return [
                a.value for a in stmt.args if isinstance(a, Scalar) and isinstance(a.value, SymDim)
            ]
        case Reduce():
            indices = [] if stmt.position is None else [stmt.position]
        case Take():
            indices = [stmt.index]
            found += [stmt.stride, stmt.extent]
        case Inside():
            indices = [stmt.index]
            found += [stmt.lo, stmt.hi]
        case Store():
            indices = [stmt.index]
            if isinstance(stmt.value, Scalar) and isinstance(stmt.value.value, SymDim):
                found.append(stmt.value.value)
        case _:
            indices = [stmt.index]
    return found + [d for i in indices for d in (i.const, *(c for _, c in i.terms))]


def live(body: Sequence[Stmt]) -> list[Stmt]:
    """The statements that a store needs."""
    needed: set[str] = set()
    kept: list[Stmt] = []
    for stmt in reversed(body):
        if isinstance(stmt, Store) or stmt.name in needed:
            needed.update(stmt.uses)
            kept.append(stmt)
    return kept[::-1]


def show_kernel(kernel: Kernel) -> str:
    """Text of a kernel; `parse_kernel` reads it back."""
    buffers = ", ".join(f"{b.name}: {b.role} {b.dtype.value}" for b in kernel.buffers)
    axes = " ".join(f"{a.name}:{show_dim(a.extent)}" for a in kernel.axes)
    sizes = f" sizes {' '.join(kernel.symbols)}" if kernel.symbols else ""
    lines = [f"kernel {kernel.name}({buffers}) over {axes or '1'}{sizes} {{"]
    lines += [f"  {show_stmt(s)}" for s in kernel.body]
    return "\n".join([*lines, "}"])


def show_stmt(stmt: Stmt) -> str:
    """One line of kernel text."""
    guard = ""
    if isinstance(stmt, (Load, Take, Inside)) and stmt.guard is not None:
        guard = f" if {stmt.guard}"
    match stmt:
        case Load():
            right = f"load {stmt.buffer}[{stmt.index!r}]{guard}"
        case Take():
            wrap = "wrap " if stmt.wrap else ""
            at = f"[{stmt.index!r}] by {stmt.by} * {show_dim(stmt.stride)}"
            right = f"take {wrap}{stmt.buffer}{at} below {show_dim(stmt.extent)}{guard}"
        case Compute():
            args = " ".join(map(_arg, stmt.args))
            right = f"{stmt.op} {args} of {stmt.operand_dtype.value}"
        case Iota():
            right = f"iota [{stmt.index!r}]"
        case Inside():
            right = f"inside [{stmt.index!r}] {show_dim(stmt.lo)} {show_dim(stmt.hi)}{guard}"
        case Uniform():
            at = f"[{stmt.row!r}][{stmt.col!r}]"
            right = (
                f"uniform {stmt.seed}{at} of {show_dim(stmt.extent)} stream {show_dim(stmt.stream)}"
            )
        case Reduce():
            at = "" if stmt.position is None else f" at [{stmt.position!r}]"
            right = f"reduce {stmt.op}<{','.join(stmt.over)}> {stmt.arg}{at}"
        case Store():
            left = f"store {stmt.buffer}[{stmt.index!r}] {_arg(stmt.value)}"
            return f"{left} : {stmt.dtype.value}"
    return f"{stmt.name} = {right} : {stmt.dtype.value}"


def _arg(arg: Arg) -> str:
    return arg if isinstance(arg, str) else repr(arg)
