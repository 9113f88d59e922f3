"""Kernel: the statements of one fused loop nest over named axes, without a loop order.

A statement runs once for every point of the axes it depends on. Loads and stores address flat
buffers by affine functions of the axes, so views need no statements. The schedule adds loops,
their order, tiles and vectors (`ir/schedule.py`, `ir/nest.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, Union

from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim, show_symbols
from tofuse.ir.statement import Arg, Statement, StatementMap
from tofuse.ir.types import DType


@dataclass(frozen=True)
class Axis:
    """One dimension of the iteration space, from 0 to `extent - 1`."""

    name: str
    extent: Dim


@dataclass(frozen=True)
class Buffer:
    """Memory that the kernel reads or writes.

    `role` is "in" (read), "out" (written), "nontemporal" (written by stores that bypass the
    caches) or "host" (a few scalars in CPU memory, which a GPU kernel receives by value).
    """

    name: str
    dtype: DType
    role: str


@dataclass(frozen=True, eq=False)
class Load(Statement):
    """Read one element. If the guard is false, nothing is read and the value is zero."""

    name: str
    buffer: str
    index: AffineExpr
    dtype: DType
    guard: str | None = None

    def map(self, f: StatementMap) -> Load:
        index, guard = f.index(self.index), f.guard(self.guard)
        return Load(self.name, self.buffer, index, self.dtype, guard)


@dataclass(frozen=True, eq=False)
class Gather(Statement):
    """Read the element at `index + stride * dynamic_index`.

    A `dynamic_index` outside [0, extent) is a run-time error. With `wrap`, negative values count
    from the end.
    """

    name: str
    buffer: str
    index: AffineExpr
    dynamic_index: str
    stride: Dim
    extent: Dim
    wrap: bool
    dtype: DType
    guard: str | None = None

    def map(self, f: StatementMap) -> Gather:
        return Gather(
            self.name,
            self.buffer,
            f.index(self.index),
            f.value(self.dynamic_index),
            f.dim(self.stride),
            f.dim(self.extent),
            self.wrap,
            self.dtype,
            f.guard(self.guard),
        )


@dataclass(frozen=True, eq=False)
class Compute(Statement):
    """An elementwise op of `ops.table` on values and constants.

    The arguments have `operand_dtype`, the result has `dtype`. `rounds_to` is the half-precision
    type of the result in the graph: an error well below that rounding is allowed.
    """

    name: str
    op: str
    args: tuple[Arg, ...]
    dtype: DType
    operand_dtype: DType
    rounds_to: DType | None = None

    def map(self, f: StatementMap) -> Compute:
        args = tuple(map(f.arg, self.args))
        return Compute(self.name, self.op, args, self.dtype, self.operand_dtype, self.rounds_to)


@dataclass(frozen=True, eq=False)
class Iota(Statement):
    """The value of an affine function of the axes."""

    name: str
    index: AffineExpr
    dtype: DType

    def map(self, f: StatementMap) -> Iota:
        return Iota(self.name, f.index(self.index), self.dtype)


@dataclass(frozen=True, eq=False)
class InRange(Statement):
    """The boolean `lo <= index < hi`, and-ed with `guard` if there is one."""

    name: str
    index: AffineExpr
    lo: Dim
    hi: Dim
    guard: str | None = None
    dtype: ClassVar[DType] = DType.BOOL

    def map(self, f: StatementMap) -> InRange:
        index, lo, hi = f.index(self.index), f.dim(self.lo), f.dim(self.hi)
        return InRange(self.name, index, lo, hi, f.guard(self.guard))


@dataclass(frozen=True, eq=False)
class Uniform(Statement):
    """The uniform random number of element (row, col) of a tensor with last extent `extent`.

    With `below`, a boolean instead: whether 16 random bits are less than `below`.
    """

    name: str
    seed: str
    row: AffineExpr
    col: AffineExpr
    extent: Dim
    stream: Dim
    below: int | None = None

    @property
    def dtype(self) -> DType:
        return DType.F32 if self.below is None else DType.BOOL

    def map(self, f: StatementMap) -> Uniform:
        row, col, extent, stream = self.row, self.col, self.extent, self.stream
        row, col, extent, stream = f.index(row), f.index(col), f.dim(extent), f.dim(stream)
        return Uniform(self.name, self.seed, row, col, extent, stream, self.below)


@dataclass(frozen=True, eq=False)
class Reduce(Statement):
    """Combine `arg` over the axes `over`. argmax and argmin return `position`."""

    name: str
    op: str
    arg: str
    over: tuple[str, ...]
    dtype: DType
    position: AffineExpr | None = None

    def map(self, f: StatementMap) -> Reduce:
        position = None if self.position is None else f.index(self.position)
        return Reduce(self.name, self.op, f.value(self.arg), self.over, self.dtype, position)


@dataclass(frozen=True, eq=False)
class Scan(Statement):
    """Combine `arg` with the value of the step before along `axis`; a scan of `ops.table`.

    The steps are in order of the axis, or of the axis from its end if `reverse`.
    """

    name: str
    op: str
    arg: str
    axis: str
    reverse: bool
    dtype: DType

    def map(self, f: StatementMap) -> Scan:
        return Scan(self.name, self.op, f.value(self.arg), self.axis, self.reverse, self.dtype)


@dataclass(frozen=True, eq=False)
class Store(Statement):
    """Write one element."""

    buffer: str
    index: AffineExpr
    value: Arg
    dtype: DType

    def map(self, f: StatementMap) -> Store:
        return Store(self.buffer, f.index(self.index), f.arg(self.value), self.dtype)


@dataclass(frozen=True, eq=False)
class Scatter(Statement):
    """Replace the element at `index + stride * dynamic_index` by its combination with a value.

    `op` is a reduction; a number is stored in all of the buffer before. Points that differ only in
    the axes `over` may have the same element. For `dynamic_index` and the rest, see `Gather`.
    """

    buffer: str
    index: AffineExpr
    dynamic_index: str
    stride: Dim
    extent: Dim
    wrap: bool
    op: str
    over: tuple[str, ...]
    value: str
    dtype: DType

    def map(self, f: StatementMap) -> Scatter:
        return replace(
            self,
            index=f.index(self.index),
            dynamic_index=f.value(self.dynamic_index),
            stride=f.dim(self.stride),
            extent=f.dim(self.extent),
            value=f.value(self.value),
        )


@dataclass(frozen=True, eq=False)
class Previous(Statement):
    """The value that a `Next` handed over in the step before along `axis`; `start` in the first.

    `reads` has all other values from outside that the steps read: the value has their axes.
    """

    name: str
    start: Arg
    reads: tuple[str, ...]
    axis: str
    dtype: DType
    reverse: ClassVar[bool] = False

    def map(self, f: StatementMap) -> Previous:
        reads = tuple(map(f.value, self.reads))
        return Previous(self.name, f.arg(self.start), reads, self.axis, self.dtype)


@dataclass(frozen=True, eq=False)
class Next(Statement):
    """A copy of `arg`. In the next iteration of the loop, `previous` has this value."""

    name: str
    previous: str
    arg: str
    dtype: DType

    def map(self, f: StatementMap) -> Next:
        return Next(self.name, f.value(self.previous), f.value(self.arg), self.dtype)


Definition = Union[  # noqa: UP007
    Load, Gather, Compute, Iota, InRange, Uniform, Reduce, Scan, Previous, Next
]
Carried = Union[Scan, Previous]  # noqa: UP007
CARRIED = (Scan, Previous)  # the statements that the loop along their axis carries
Write = Union[Store, Scatter]  # noqa: UP007
WRITES = (Store, Scatter)  # the statements that define no value
Stmt = Union[Definition, Write]  # noqa: UP007


@dataclass(frozen=True, eq=False)
class Kernel:
    """Axes, buffers and size symbols (both in argument order), and statements."""

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

    @cached_property
    def definitions(self) -> Mapping[str, Definition]:
        """The statement that defines each value."""
        return {s.name: s for s in self.body if not isinstance(s, WRITES)}

    @cached_property
    def seeds(self) -> frozenset[str]:
        """The buffers that hold the seeds of random numbers."""
        return frozenset(s.seed for s in self.body if isinstance(s, Uniform))

    def __repr__(self) -> str:
        """Return the text of a kernel, which `parse_kernel` accepts."""
        buffers = ", ".join(f"{b.name}: {b.role} {b.dtype.value}" for b in self.buffers)
        axes = " ".join(f"{a.name}:{a.extent}" for a in self.axes)
        dims = [*self.extents.values(), *(d for s in self.body for d in s.dims)]
        sizes = f" sizes {show_symbols(self.symbols, dims)}" if self.symbols else ""
        lines = [f"kernel {self.name}({buffers}) over {axes or '1'}{sizes} {{"]
        lines += [f"  {show_stmt(s)}" for s in self.body]
        return "\n".join([*lines, "}"])


@lru_cache(maxsize=8)
def iteration_axes(
    kernel: Kernel,
) -> tuple[Mapping[str, frozenset[str]], Mapping[Stmt, frozenset[str]]]:
    """Return the axes that each value depends on, and the axes that each statement runs over.

    A reduction runs over all axes of its operand. Its value depends on those that are not reduced.
    A scan and its value depend on its axis.
    """
    values: dict[str, frozenset[str]] = {}
    domains: dict[Stmt, frozenset[str]] = {}
    for stmt in kernel.body:
        axes = _union([values[u] for u in stmt.uses], [i for i in stmt.indices if i.terms])
        if isinstance(stmt, CARRIED):
            axes |= {stmt.axis}
        over = stmt.over if isinstance(stmt, (Reduce, Scatter)) else ()
        domains[stmt] = axes.union(over) if over else axes
        if not isinstance(stmt, WRITES):
            values[stmt.name] = axes.difference(over) if over else axes
    return values, domains


def _union(sets: Sequence[frozenset[str]], indices: Sequence[AffineExpr]) -> frozenset[str]:
    """Return the union of the sets and of the axes of the indices: one of the sets if it can."""
    distinct = frozenset(sets)
    if len(distinct) == 1 and not indices:
        return sets[0]
    return frozenset(a for i in indices for a in i.axes).union(*distinct)


def buffers_of(stmt: Stmt) -> tuple[str, ...]:
    """Return the buffers that a statement reads or writes."""
    if isinstance(stmt, Uniform):
        return (stmt.seed,)
    return (stmt.buffer,) if isinstance(stmt, (Load, Gather, *WRITES)) else ()


def show_stmt(stmt: Stmt) -> str:
    """Return one line of kernel text."""
    guard = ""
    if isinstance(stmt, (Load, Gather, InRange)) and stmt.guard is not None:
        guard = f" if {stmt.guard}"
    match stmt:
        case Load():
            right = f"load {stmt.buffer}[{stmt.index!r}]{guard}"
        case Gather():
            wrap = "wrap " if stmt.wrap else ""
            at = f"[{stmt.index!r}] by {stmt.dynamic_index} * {stmt.stride}"
            right = f"gather {wrap}{stmt.buffer}{at} below {stmt.extent}{guard}"
        case Compute():
            args = " ".join(map(str, stmt.args))
            rounds = "" if stmt.rounds_to is None else f" to {stmt.rounds_to.value}"
            right = f"{stmt.op} {args} of {stmt.operand_dtype.value}{rounds}"
        case Iota():
            right = f"iota [{stmt.index!r}]"
        case InRange():
            right = f"in_range [{stmt.index!r}] {stmt.lo} {stmt.hi}{guard}"
        case Uniform():
            at = f"[{stmt.row!r}][{stmt.col!r}]"
            below = "" if stmt.below is None else f" below {stmt.below}"
            right = f"uniform {stmt.seed}{at} of {stmt.extent} stream {stmt.stream}{below}"
        case Reduce():
            at = "" if stmt.position is None else f" at [{stmt.position!r}]"
            right = f"reduce {stmt.op}<{','.join(stmt.over)}> {stmt.arg}{at}"
        case Scan():
            down = " down" if stmt.reverse else ""
            right = f"scan {stmt.op}<{stmt.axis}> {stmt.arg}{down}"
        case Previous():
            reads = "".join(f" {name}" for name in stmt.reads)
            right = f"previous<{stmt.axis}> {stmt.start} reads{reads}"
        case Next():
            right = f"next {stmt.previous} {stmt.arg}"
        case Scatter():
            at = f"{'wrap ' if stmt.wrap else ''}{stmt.buffer}[{stmt.index!r}]"
            by = f"by {stmt.dynamic_index} * {stmt.stride} below {stmt.extent}"
            op = f"{stmt.op}<{','.join(stmt.over)}>"
            return f"scatter {op} {at} {by} {stmt.value} : {stmt.dtype.value}"
        case Store():
            left = f"store {stmt.buffer}[{stmt.index!r}] {stmt.value}"
            return f"{left} : {stmt.dtype.value}"
    return f"{stmt.name} = {right} : {stmt.dtype.value}"
