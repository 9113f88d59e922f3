"""Split a kernel into launches that compute a mean and a variance in one pass over memory.

The elements are divided into chunks that program instances hold in registers. The sum `s` and the
sum of squared deviations `q` of each chunk of `K` elements give those of all elements:
`sum (x - mean)**2 == sum_chunks (q + K * (s / K - mean)**2)`, which subtracts no large squares
(Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances", 1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tofuse.cost.thresholds import (
    LOOP_BLOCK,
    MAX_CHUNK_ROWS,
    MIN_CHUNK,
    WARPS_PER_SM,
)
from tofuse.ir.dims import product
from tofuse.ir.graph import Scalar
from tofuse.ir.kernel import (
    AffineExpr,
    Arg,
    Axis,
    Compute,
    Kernel,
    Load,
    Reduce,
    StatementMap,
    Stmt,
    Store,
    iteration_axes,
    make_affine,
)
from tofuse.ir.tile import LOOPED, GpuTarget, Partial, Tile, Tiling
from tofuse.schedule.split_launches import (
    SplitKernel,
    WorkspaceBuilder,
    combine_and_use,
    extract_kernel,
    independent_statements,
    workspace_buffers,
)


def split_variance(
    kernel: Kernel, tiling: Tiling, target: GpuTarget, workspace_count: int
) -> SplitKernel | None:
    """Split a kernel at its variances over the tile that its tiling loops over.

    Return None if there are none, if they have no chunks, or if the loops of an instance find the
    elements in the L2 cache. New workspaces are numbered from `workspace_count`.
    """
    tile = next((t for t in tiling.tiles if t.role in LOOPED), None)
    if tile is None or any(t.role == "whole" for t in tiling.tiles):
        return None
    axes = frozenset(tile.axes)
    reductions = [s for s in kernel.body if isinstance(s, Reduce)]
    if any(frozenset(r.over) != axes or r.position is not None for r in reductions):
        return None
    roots = independent_statements(kernel, axes)
    sums = [s for s in roots if isinstance(s, Reduce)]
    variances = _find_variances(kernel, sums)
    chunks = _choose_chunks(kernel, tile) if variances else None
    if chunks is None:
        return None
    at_work = target.multiprocessors * max(1, WARPS_PER_SM // tiling.warps)
    if tile.role == "loop" and _loaded_bytes(kernel, tile) * at_work <= target.l2_bytes:
        return None
    builder = WorkspaceBuilder(kernel, chunks.count, workspace_count)
    ready = [*sums, *(v.squares for v in variances)]
    partials = {r.name: builder.partial(r) for r in ready}
    combined = {r.name: builder.combine(r, partials[r.name]) for r in ready}
    for v in variances:
        sum_load, _ = combined[v.total.name]
        square_load, total = combined[v.squares.name]
        assert isinstance(sum_load, Load) and isinstance(square_load, Load)
        combined[v.squares.name] = _combine(v, sum_load, square_load, total, chunks.size)
    first = _first_launch(kernel, roots, variances, chunks, builder, partials)
    rest = combine_and_use(kernel, axes, roots, ready, combined, builder)
    return SplitKernel(first, {}, rest, builder.spaces)


@dataclass(frozen=True)
class _Variance:
    """The sum `total` of `x`, `deviation` as `x - mean`, and the sum `squares` of its squares."""

    total: Reduce
    mean: str
    deviation: Compute
    squares: Reduce


@dataclass(frozen=True)
class _Chunks:
    """Elements of a tile, divided: `inside` are the axes of a chunk, `outside` count the chunks.

    `moved` is the axis that is divided, if one is, as the index of its parts.
    """

    inside: tuple[Axis, ...]
    outside: tuple[Axis, ...]
    moved: tuple[str, AffineExpr] | None = None

    @property
    def size(self) -> int:
        return _size(self.inside)

    @property
    def count(self) -> int:
        return _size(self.outside)

    @property
    def index(self) -> AffineExpr:
        """The number of a chunk."""
        extents = [a.extent for a in self.outside]
        terms = [(a.name, product(extents[k + 1 :])) for k, a in enumerate(self.outside)]
        return make_affine(terms)

    def divide(self, index: AffineExpr) -> AffineExpr:
        """Return an index in terms of the axes of chunks."""
        if self.moved is None:
            return index
        axis, parts = self.moved
        others = AffineExpr(tuple(t for t in index.terms if t[0] != axis), index.const)
        return others + parts * index.coefficient(axis)


def _find_variances(kernel: Kernel, sums: list[Reduce]) -> list[_Variance]:
    """Return the variances of values whose sums are among `sums`."""
    values: dict[Arg, Stmt] = {s.name: s for s in kernel.body if not isinstance(s, Store)}
    found = []
    for r in kernel.body:
        if not isinstance(r, Reduce) or r.op != "sum":
            continue
        match values[r.arg]:
            case Compute(op="mul", args=(d, e)) if d == e and d in values:
                deviation = values[d]
            case _:
                continue
        match deviation:
            case Compute(op="sub", args=(x, str(m))):
                mean = values[m]
            case _:
                continue
        count = float(_size([Axis(a, kernel.extent(a)) for a in r.over]))
        match mean:
            case Compute(op="div", args=(str(t), Scalar(n))) if n == count:
                total = values[t]
            case Compute(op="mul", args=(str(t), Scalar(n))) if n == 1 / count:
                total = values[t]
            case _:
                continue
        if total in sums and isinstance(total, Reduce) and (total.op, total.arg) == ("sum", x):
            found.append(_Variance(total, mean.name, deviation, r))
    return found


def _loaded_bytes(kernel: Kernel, tile: Tile) -> int:
    """Return the bytes that one program instance loads in each pass over a looped tile.

    Parameters, which all instances load, do not count.
    """
    _, stmt_axes = iteration_axes(kernel)
    itemsizes = {b.name: b.dtype.itemsize for b in kernel.buffers}
    loads = [s for s in kernel.body if isinstance(s, Load) and stmt_axes[s].intersection(tile.axes)]
    places = {(s.buffer, s.index) for s in loads if not set(s.index.axes) <= set(tile.axes)}
    return sum(
        itemsizes[buffer] * _size([Axis(a, kernel.extent(a)) for a in index.axes if a in tile.axes])
        for buffer, index in places
    )


def _choose_chunks(kernel: Kernel, tile: Tile) -> _Chunks | None:
    """Return chunks of the innermost elements of a tile; None if there are none of enough elements.

    A chunk that is a part of a row has enough elements for wide accesses, and may fill a program
    instance. One of several rows stays smaller, since an instance holds some columns of each row.
    """
    axes = [Axis(a, kernel.extent(a)) for a in tile.axes]
    if not all(isinstance(a.extent, int) for a in axes):
        return None
    loads = [s.index for s in kernel.body if isinstance(s, Load)]
    is_row = any(index.coefficient(axes[-1].name) == 1 for index in loads)
    wanted, most = (LOOP_BLOCK // 2, LOOP_BLOCK) if is_row else (MAX_CHUNK_ROWS, MAX_CHUNK_ROWS)
    inside: list[Axis] = []
    while len(axes) > 1 and _size(inside) < wanted and _size([*inside, axes[-1]]) <= most:
        inside.insert(0, axes.pop())
    moved = None
    if _size(inside) < wanted:
        axis = axes[-1]
        limit = _extent(axis) if len(axes) > 1 else _extent(axis) // 2  # there are several chunks
        limit = min(most // _size(inside), limit)
        factor = _factor(_extent(axis), wanted // _size(inside), limit)
        if factor > 1:
            outer = Axis(f"{axis.name}_chunk", _extent(axis) // factor)
            inner = Axis(f"{axis.name}_in", factor)
            moved = axis.name, make_affine([(outer.name, factor), (inner.name, 1)])
            axes[-1] = outer
            inside.insert(0, inner)
    if _size(inside) < MIN_CHUNK or _size(axes) < 2:
        return None
    return _Chunks(tuple(inside), tuple(axes), moved)


def _factor(extent: int, wanted: int, most: int) -> int:
    """Return the least divisor that is at least `wanted`, or the largest one of at most `most`."""
    divisors = [d for d in range(1, most + 1) if extent % d == 0]
    return next((d for d in divisors if d >= wanted), max(divisors, default=1))


def _first_launch(
    kernel: Kernel,
    roots: list[Stmt],
    variances: list[_Variance],
    chunks: _Chunks,
    builder: WorkspaceBuilder,
    partials: dict[str, Partial],
) -> Kernel:
    """Return the launch that stores the sums and the squared deviations of all chunks."""
    divide = StatementMap(index=chunks.divide)
    over = tuple(a.name for a in chunks.inside)
    body: list[Stmt] = []
    ends: list[Stmt] = []

    def reduce_chunk(r: Reduce, arg: str) -> None:
        name, p = f"{r.name}_chunk", partials[r.name]
        body.append(replace(r, name=name, arg=arg, over=over))
        ends.append(Store(p.buffer, p.index + chunks.index * p.step, name, r.dtype))

    for s in kernel.body:
        if s in roots and isinstance(s, Reduce):
            reduce_chunk(s, s.arg)
        elif s in roots:
            ends.append(s.map(divide))
        elif not isinstance(s, Store):
            body.append(s.map(divide))
    for v in variances:
        mean, deviation, square = (f"{v.squares.name}_{k}" for k in ("mean", "deviation", "square"))
        x, _ = v.deviation.args
        body += [
            _compute(v, mean, "div", f"{v.total.name}_chunk", Scalar(float(chunks.size))),
            replace(v.deviation, name=deviation, args=(x, mean)),
            _compute(v, square, "mul", deviation, deviation),
        ]
        reduce_chunk(v.squares, square)
    kept = tuple(a for a in kernel.axes if chunks.moved is None or a.name != chunks.moved[0])
    new = tuple(a for a in (*chunks.outside, *chunks.inside) if a not in kept)
    buffers = (*kernel.buffers, *workspace_buffers("out", builder.partial_spaces))
    divided = replace(kernel, axes=(*kept, *new), buffers=buffers)
    return extract_kernel(divided, ends, (*body, *ends), f"{kernel.name}_part")


def _combine(
    v: _Variance, chunk_sum: Load, chunk_squares: Load, total: Stmt, size: int
) -> list[Stmt]:
    """Return the sum of squared deviations of all elements, from those of chunks of `size`."""
    assert isinstance(total, Reduce)
    name, count = v.squares.name, Scalar(float(size))
    mean, between, square, weighted, sum_of_both = (
        f"{name}_{k}" for k in ("mean", "between", "square", "weighted", "both")
    )
    return [
        chunk_squares,
        _compute(v, mean, "div", chunk_sum.name, count),
        _compute(v, between, "sub", mean, v.mean),
        _compute(v, square, "mul", between, between),
        _compute(v, weighted, "mul", square, count),
        _compute(v, sum_of_both, "add", chunk_squares.name, weighted),
        replace(total, arg=sum_of_both),
    ]


def _compute(v: _Variance, name: str, op: str, *args: Arg) -> Compute:
    return Compute(name, op, args, v.squares.dtype, v.squares.dtype)


def _size(axes: Sequence[Axis]) -> int:
    """Return the number of elements along axes of constant extents."""
    return math.prod(_extent(a) for a in axes)


def _extent(axis: Axis) -> int:
    assert isinstance(axis.extent, int)
    return axis.extent
