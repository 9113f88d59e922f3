"""Split a kernel into launches that compute dependent sums in one pass over memory.

Instances store the results of chunks that they hold in registers, and one launch combines them:
mean and variance, or the maximum and the sum of exponentials (`dependent_sums.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tofuse.backends.cuda.schedule.split_launches import (
    SplitKernel,
    WorkspaceBuilder,
    combine_and_use,
    extract_kernel,
    independent_statements,
    row_major,
    workspace_buffers,
)
from tofuse.cost.thresholds import LOOP_BLOCK, MAX_CHUNK_ROWS, MIN_CHUNK, WARPS_PER_SM
from tofuse.ir.affine import AffineExpr, make_affine
from tofuse.ir.dims import product, size_hint
from tofuse.ir.kernel import WRITES, Axis, Definition, Kernel, Load, Reduce, Stmt, Store
from tofuse.ir.statement import StatementMap
from tofuse.ir.tile import GpuTarget, Partial, Tile, Tiling
from tofuse.schedule.dependent_sums import DependentSum, find_dependent_sums


def split_dependent_sums(
    kernel: Kernel, tiling: Tiling, target: GpuTarget, workspace_count: int
) -> SplitKernel | None:
    """Split a kernel at its dependent sums over the tile that its tiling loops over.

    Return None if there are no dependent sums, if the elements cannot be divided into chunks, or if
    the later passes of an instance read its elements from the L2 cache. New workspaces are numbered
    from `workspace_count`.
    """
    tile = tiling.loop_tile
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
    dependent = find_dependent_sums(kernel, sums)
    chunks = _choose_chunks(kernel, tile) if dependent else None
    if chunks is None:
        return None
    at_work = target.multiprocessors * max(1, WARPS_PER_SM // tiling.warps)
    if tile.role == "loop" and _loaded_bytes(kernel, tile) * at_work <= target.l2_bytes:
        return None
    builder = WorkspaceBuilder(kernel, chunks.count, workspace_count)
    ready = [*sums, *(d.total for d in dependent)]
    partials = {r.name: builder.partial(r) for r in ready}
    combined = {r.name: builder.combine(r, partials[r.name]) for r in ready}
    for d in dependent:
        combined[d.total.name] = _combine(d, combined, chunks.size)
    first = _first_launch(kernel, roots, dependent, chunks, builder, partials)
    rest = combine_and_use(kernel, axes, roots, ready, combined, builder)
    return SplitKernel(first, {}, rest, builder.spaces)


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
        return row_major(self.outside)

    def divide(self, index: AffineExpr) -> AffineExpr:
        """Return an index of the kernel in terms of the axes of chunks."""
        if self.divided is None:
            return index
        axis, parts = self.divided
        others = AffineExpr(tuple(t for t in index.terms if t[0] != axis), index.const)
        return others + parts * index.coefficient(axis)


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
    dependent: list[DependentSum],
    chunks: _Chunks,
    builder: WorkspaceBuilder,
    partials: dict[str, Partial],
) -> Kernel:
    """Return the launch that stores the results of all chunks."""
    divide = StatementMap(index=chunks.divide)
    over = tuple(a.name for a in chunks.inside)
    body: list[Stmt] = []
    stores: list[Stmt] = []

    def reduce_chunk(r: Reduce, operand: Definition) -> None:
        name, p = f"{r.name}_chunk", partials[r.name]
        body.append(replace(r, name=name, arg=operand.name, over=over))
        stores.append(Store(p.buffer, p.index + chunks.index * p.step, name, r.dtype))

    for s in kernel.body:
        if s in roots and isinstance(s, Reduce):
            reduce_chunk(s, kernel.definitions[s.arg])
        elif s in roots:
            stores.append(s.map(divide))
        elif not isinstance(s, WRITES):
            body.append(s.map(divide))
    for d in dependent:
        statements = d.in_chunk(f"{d.first.name}_chunk", chunks.size)
        body += statements
        reduce_chunk(d.total, statements[-1])
    kept = tuple(a for a in kernel.axes if chunks.divided is None or a.name != chunks.divided[0])
    new_axes = tuple(a for a in (*chunks.outside, *chunks.inside) if a not in kept)
    buffers = (*kernel.buffers, *workspace_buffers("out", builder.partial_spaces))
    divided = replace(kernel, axes=(*kept, *new_axes), buffers=buffers)
    return extract_kernel(divided, stores, (*body, *stores), f"{kernel.name}_part")


def _combine(d: DependentSum, combined: Mapping[str, list[Stmt]], size: int) -> list[Stmt]:
    """Return the statements that combine a dependent sum of chunks.

    `combined` has the loads of the results of chunks, and the reductions of these.
    """
    first, _ = combined[d.first.name]
    load, total = combined[d.total.name]
    assert isinstance(first, Load) and isinstance(load, Load) and isinstance(total, Reduce)
    statements = d.in_combination(first.name, load.name, size)
    return [load, *statements, replace(total, arg=statements[-1].name)]


def _size(axes: Sequence[Axis]) -> int:
    """Return the number of elements along axes, whose extents are constant."""
    return math.prod(_extent(a) for a in axes)


def _extent(axis: Axis) -> int:
    assert isinstance(axis.extent, int)
    return axis.extent
