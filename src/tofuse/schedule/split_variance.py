"""Split a kernel into launches that compute a mean and a variance in one pass over memory.

Instances store, for each chunk of K elements, its sum s and the sum q of squared deviations from
the chunk's own mean. These give the squared deviations from the mean of all elements, without a
difference of large squares:

    sum((x - mean)**2) == sum over chunks of q + K * (s / K - mean)**2

(Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances", 1979).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tofuse.cost.thresholds import (
    LOOP_BLOCK,
    MAX_CHUNK_ROWS,
    MIN_CHUNK,
    WARPS_PER_SM,
)
from tofuse.ir.dims import product, size_hint
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

    Return None if there are no variances, if the elements cannot be divided into chunks, or if
    the later passes of an instance read its elements from the L2 cache. New workspaces are numbered
    from `workspace_count`.
    """
    tile = next((t for t in tiling.tiles if t.role in LOOPED), None)
    if tile is None or any(t.role == "whole" for t in tiling.tiles):
        return None
    if not all(isinstance(kernel.extent(a), int) for a in tile.axes):
        return None
    if any(a.extent == 0 for a in kernel.axes):
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
        combined[v.squares.name] = _combine(v, combined, chunks.size)
    first = _first_launch(kernel, roots, variances, chunks, builder, partials)
    rest = combine_and_use(kernel, axes, roots, ready, combined, builder)
    return SplitKernel(first, {}, rest, builder.spaces)


@dataclass(frozen=True)
class _Variance:
    """`total` is the sum of x, `deviation` is x - mean, and `squares` the sum of its squares."""

    total: Reduce
    mean_name: str
    deviation: Compute
    squares: Reduce


@dataclass(frozen=True)
class _Chunks:
    """Chunks of the elements of a tile: `inside` are the axes of one, `outside` number the chunks.

    `divided` is the axis that is cut into two, if one is, and its index in terms of the new axes.
    """

    inside: tuple[Axis, ...]
    outside: tuple[Axis, ...]
    divided: tuple[str, AffineExpr] | None = None

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
        """Return an index of the kernel in terms of the axes of chunks."""
        if self.divided is None:
            return index
        axis, parts = self.divided
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
        count = product(kernel.extent(a) for a in r.over)
        assert isinstance(count, int)
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

    Parameters do not count: loads with no other axes are the same for all instances.
    """
    itemsizes = {b.name: b.dtype.itemsize for b in kernel.buffers}
    own, along = set(kernel.extents) - set(tile.axes), set(tile.axes)
    total = 0
    for buffer, index in {(s.buffer, s.index) for s in kernel.body if isinstance(s, Load)}:
        if not own.isdisjoint(index.axes) and not along.isdisjoint(index.axes):
            elements = size_hint(product(kernel.extent(a) for a in along.intersection(index.axes)))
            total += itemsizes[buffer] * elements
    return total


def _choose_chunks(kernel: Kernel, tile: Tile) -> _Chunks | None:
    """Return chunks of the innermost elements of a tile; None if they would be too small or one.

    A chunk of contiguous elements has 4096 or more, if the extents have such divisors. Otherwise
    an instance computes several columns at once, and a chunk has at most `MAX_CHUNK_ROWS`.
    """
    axes = [Axis(a, kernel.extent(a)) for a in tile.axes]
    loads = [s.index for s in kernel.body if isinstance(s, Load)]
    is_row = any(index.coefficient(axes[-1].name) == 1 for index in loads)
    wanted, most = (LOOP_BLOCK // 2, LOOP_BLOCK) if is_row else (MAX_CHUNK_ROWS, MAX_CHUNK_ROWS)
    inside: list[Axis] = []
    while len(axes) > 1 and _size(inside) < wanted and _size([*inside, axes[-1]]) <= most:
        inside.insert(0, axes.pop())
    divided = None
    if _size(inside) < wanted:
        axis = axes[-1]
        limit = _extent(axis) if len(axes) > 1 else _extent(axis) // 2  # there are several chunks
        limit = min(most // _size(inside), limit)
        factor = _factor(_extent(axis), wanted // _size(inside), limit)
        if factor > 1:
            outer = Axis(f"{axis.name}_chunk", _extent(axis) // factor)
            inner = Axis(f"{axis.name}_in", factor)
            divided = axis.name, make_affine([(outer.name, factor), (inner.name, 1)])
            axes[-1] = outer
            inside.insert(0, inner)
    if _size(inside) < MIN_CHUNK or _size(axes) < 2:
        return None
    return _Chunks(tuple(inside), tuple(axes), divided)


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
    stores: list[Stmt] = []

    def reduce_chunk(r: Reduce, arg: str) -> None:
        name, p = f"{r.name}_chunk", partials[r.name]
        body.append(replace(r, name=name, arg=arg, over=over))
        stores.append(Store(p.buffer, p.index + chunks.index * p.step, name, r.dtype))

    for s in kernel.body:
        if s in roots and isinstance(s, Reduce):
            reduce_chunk(s, s.arg)
        elif s in roots:
            stores.append(s.map(divide))
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
    kept = tuple(a for a in kernel.axes if chunks.divided is None or a.name != chunks.divided[0])
    new_axes = tuple(a for a in (*chunks.outside, *chunks.inside) if a not in kept)
    buffers = (*kernel.buffers, *workspace_buffers("out", builder.partial_spaces))
    divided = replace(kernel, axes=(*kept, *new_axes), buffers=buffers)
    return extract_kernel(divided, stores, (*body, *stores), f"{kernel.name}_part")


def _combine(v: _Variance, combined: Mapping[str, Sequence[Stmt]], size: int) -> list[Stmt]:
    """Return the sum of squared deviations of all elements, from those of chunks of `size`.

    `combined` has the loads of the partial results, and their sums.
    """
    chunk_sum, _ = combined[v.total.name]
    chunk_squares, total = combined[v.squares.name]
    assert isinstance(chunk_sum, Load) and isinstance(chunk_squares, Load)
    assert isinstance(total, Reduce)
    name, count = v.squares.name, Scalar(float(size))
    mean, between, square, weighted, part = (
        f"{name}_{k}" for k in ("mean", "between", "square", "weighted", "part")
    )
    return [
        chunk_squares,
        _compute(v, mean, "div", chunk_sum.name, count),
        _compute(v, between, "sub", mean, v.mean_name),
        _compute(v, square, "mul", between, between),
        _compute(v, weighted, "mul", square, count),
        _compute(v, part, "add", chunk_squares.name, weighted),
        replace(total, arg=part),
    ]


def _compute(v: _Variance, name: str, op: str, *args: Arg) -> Compute:
    return Compute(name, op, args, v.squares.dtype, v.squares.dtype)


def _size(axes: Sequence[Axis]) -> int:
    """Return the number of elements along axes, whose extents are constant."""
    return math.prod(_extent(a) for a in axes)


def _extent(axis: Axis) -> int:
    assert isinstance(axis.extent, int)
    return axis.extent
