"""Kernel -> Tiling: group the axes of a kernel and choose the tiles of a GPU program instance."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.analysis.footprint import widest_element
from tofuse.backends.cuda.schedule.align_rows import row_start
from tofuse.backends.cuda.schedule.sink_parameters import sink_parameters
from tofuse.cost.thresholds import (
    ACCUMULATED_ROW_ELEMENTS_PER_WARP,
    ELEMENTS_PER_WARP_ALONE,
    ELEMENTS_PER_WARP_OF_RESULT,
    GPU_TRANSPOSE_TILE,
    HALF_ROW,
    INSTANCE_ROW_ACCUMULATOR_BYTES,
    INSTANCES_PER_SM,
    LOOP_BLOCK,
    LOOP_BLOCK_BESIDE_WHOLE,
    LOOPED_ROW_BLOCK_ELEMENTS_PER_WARP,
    MAX_COLUMNS,
    MAX_REGISTER_LOADS,
    MAX_ROW_TILE,
    MAX_SPLIT_WARPS,
    MAX_STAGES,
    MIN_COLUMNS,
    MIN_ROWS_OF_SPLIT,
    MIN_SPLIT,
    MIN_WIDE_COLUMN_SUM,
    POINTWISE_BLOCK,
    POINTWISE_TENSOR_BYTES_PER_THREAD,
    REGISTER_ROW,
    REGISTER_TILE,
    RESERVED_SHARED_BYTES,
    SM_ELEMENTS_BESIDE_WHOLE,
    SPLITS_PER_SM,
    SPLITS_PER_SM_BESIDE_WHOLE,
    UNALIGNED_ROW,
    UNKNOWN_SIZE,
    WARPS_PER_SM,
    WIDEST_THREAD_ACCESS_BYTES,
)
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import product, size_hint, static_or
from tofuse.ir.kernel import CARRIED, Compute, Gather, Kernel, Load, Reduce, Store, iteration_axes
from tofuse.ir.rules import Rule
from tofuse.ir.tile import GpuTarget, Tile, Tiling
from tofuse.schedule.axis_strides import axes_by_stride, transposed_axis
from tofuse.schedule.schedule_legality import Unschedulable


@dataclass(frozen=True, kw_only=True)
class TilingLimits:
    """Numbers of elements in a program instance that decide how a reduction is tiled."""

    register_tile: int = REGISTER_TILE
    register_row: int = REGISTER_ROW
    half_row: int = HALF_ROW
    unaligned_row: int = UNALIGNED_ROW
    loop_block: int = LOOP_BLOCK
    loop_block_beside_whole: int = LOOP_BLOCK_BESIDE_WHOLE
    min_split: int = MIN_SPLIT


DEFAULT_LIMITS = TilingLimits()


def choose_tiling(
    kernel: Kernel, target: GpuTarget, limits: TilingLimits = DEFAULT_LIMITS
) -> Tiling:
    """Return tiles for all axes; raise Unschedulable if no program instance can hold them."""
    if any(isinstance(s, CARRIED) for s in kernel.body):
        raise Unschedulable(Rule.ILLEGAL_TILING("a cumulative operator"))
    groups = _axis_groups(kernel)
    reduced = [g for g in groups if g.reduced]
    if not reduced:
        return _pointwise_tiling(kernel, groups)
    looped, whole = _choose_loop_group(kernel, reduced, limits)
    free = [g for g in groups if not g.reduced]
    return _reduction_tiling(kernel, target, free, looped, whole, limits)


@dataclass(frozen=True)
class _AxisGroup:
    """Axes that the same reductions run over, outermost first.

    `extent` is their product, or a guess if it is not `static`.
    """

    axes: tuple[str, ...]
    extent: int
    static: bool
    reduced: bool
    contiguous: bool


def _axis_groups(kernel: Kernel) -> list[_AxisGroup]:
    """Return the groups by decreasing stride, the contiguous one last."""
    reductions = [s for s in kernel.body if isinstance(s, Reduce)]
    order, vector, transposed = _axis_order(kernel)
    members: dict[tuple[bool, ...], list[str]] = {}
    for axis in order:
        key = tuple(axis in r.over for r in reductions)
        if not reductions and transposed is not None:
            key = (axis == vector, axis == transposed)
        members.setdefault(key, []).append(axis)
    groups = []
    for key, axes in members.items():
        for p in (r.position for r in reductions if r.position is not None):
            if all(p.coefficient(a) != 0 for a in axes):
                axes = sorted(axes, key=lambda a, p=p: -size_hint(p.coefficient(a)))  # type: ignore[misc]
        extent = product(kernel.extent(a) for a in axes)
        size, static = static_or(extent, UNKNOWN_SIZE), isinstance(extent, int)
        reduced = bool(reductions) and any(key)
        groups.append(_AxisGroup(tuple(axes), size, static, reduced, vector in axes))
    return sorted(groups, key=lambda g: (g.contiguous, transposed in g.axes))


def _axis_order(kernel: Kernel) -> tuple[list[str], str | None, str | None]:
    """Return the axes by stride, the contiguous axis, and an axis contiguous in other buffers."""
    _, stmt_axes = iteration_axes(kernel)
    weights: list[tuple[AffineExpr, int]] = []
    for s in kernel.body:
        if isinstance(s, (Load, Store, Gather)):
            points = product(kernel.extent(a) for a in stmt_axes[s])
            elements = static_or(points, UNKNOWN_SIZE)
            weights.append((s.index, elements * (1 + isinstance(s, Store))))

    def score(axis: str) -> float:
        total = 0.0
        for index, weight in weights:
            step = index.coefficient(axis)
            total += weight if step == 1 else -weight if step != 0 else 0
        return total / (max((w for _, w in weights), default=1) or 1)

    order = axes_by_stride(kernel, weights)
    if not order:
        return [], None, None
    vector = max(order, key=lambda a: (score(a), min(64, static_or(kernel.extent(a), 64)), a))
    order = [a for a in order if a != vector] + [vector]
    sizes = {a.name: static_or(a.extent, UNKNOWN_SIZE) for a in kernel.axes}
    return order, vector, transposed_axis([i for i, _ in weights], vector, sizes, shortest=16)


def _pointwise_tiling(kernel: Kernel, groups: list[_AxisGroup]) -> Tiling:
    if len(groups) <= 1:
        size = min(POINTWISE_BLOCK, next_power_of_2(groups[0].extent) if groups else 1)
        tiles = tuple(Tile(g.axes, size, "grid") for g in groups)
        widest = widest_element(kernel)
        per_thread = max(4, min(16, POINTWISE_TENSOR_BYTES_PER_THREAD // widest))
        return Tiling(tiles, max(1, min(4, size // (32 * per_thread))))
    sides = [min(GPU_TRANSPOSE_TILE, next_power_of_2(g.extent)) for g in groups[-2:]]
    blocks = [1] * (len(groups) - 2) + sides
    tiles = tuple(Tile(g.axes, block, "grid") for g, block in zip(groups, blocks, strict=True))
    return Tiling(tiles, _num_warps(max_elements(kernel, tiles)))


def _choose_loop_group(
    kernel: Kernel, reduced: list[_AxisGroup], limits: TilingLimits
) -> tuple[_AxisGroup, tuple[Tile, ...]]:
    """Return the reduced group to loop over; tiles of the others are whole in registers."""
    if len(reduced) == 1:
        return reduced[0], ()
    *others, last = reduced
    if any(not g.static for g in (*others[1:], last)) and others[0].static:
        others[0], last = last, others[0]
    looped = max(others, key=lambda g: g.extent)
    resident = [g for g in reduced if g is not looped]
    tiles = tuple(Tile(g.axes, next_power_of_2(g.extent), "whole") for g in resident)
    if not all(g.static for g in resident):
        raise Unschedulable(Rule.DYNAMIC_REDUCTIONS())
    accumulated = _accumulated_bytes(kernel, looped, tiles)
    if accumulated:
        limit = min(limits.register_tile, INSTANCE_ROW_ACCUMULATOR_BYTES // accumulated)
    else:
        limit = _max_register_row(kernel, resident[0], limits)
        if not _has_aligned_rows(kernel, resident[0]):
            limit = max(limit, limits.unaligned_row)
    if max_elements(kernel, tiles) > limit:
        raise Unschedulable(Rule.LARGE_REDUCTIONS(limit))
    return looped, tiles


def _reduction_tiling(
    kernel: Kernel,
    target: GpuTarget,
    free: list[_AxisGroup],
    looped: _AxisGroup,
    whole: tuple[Tile, ...],
    limits: TilingLimits,
) -> Tiling:
    whole_elements = max_elements(kernel, whole)
    # rows that are divided have blocks of whole vectors, and begin at different places
    divided = row_start(kernel, looped.axes) if looped.contiguous and not whole else None
    length = next_power_of_2(looped.extent - (looped.extent % divided[1] if divided else 0))
    columns = rows = 1
    large = False
    if not whole and not looped.contiguous:
        contiguous = max((g.extent for g in free if g.contiguous), default=1)
        others = product(g.extent for g in free if not g.contiguous)
        large = looped.extent * contiguous * size_hint(others) >= MIN_WIDE_COLUMN_SUM
        instances = 1 if large else target.multiprocessors
        columns = _column_block(contiguous, size_hint(others), instances)
    if not whole and columns == 1 and looped.static and divided is None:
        most = next_power_of_2(max((g.extent for g in free), default=1))
        rows = max(1, min(MAX_ROW_TILE // length, most))
    width = max(columns, rows)
    tiles, programs = [], 1
    for k, g in enumerate(free):
        last = k == len(free) - 1
        block = width if (g.contiguous if columns > 1 else last) else 1
        tiles.append(Tile(g.axes, block, "grid"))
        programs *= -(-g.extent // block)
    few = 2 * programs <= target.multiprocessors * (SPLITS_PER_SM if large else 1)
    if whole:
        most = limits.loop_block_beside_whole // whole_elements
    else:
        most = limits.loop_block // width
    block = max(1, min(length, most))
    blocks = -(-looped.extent // block)
    role, splits, stages, warps = "loop", 1, 1, 0
    if few and looped.extent * whole_elements * width >= limits.min_split and blocks > 1:
        shared = _SharedLoop(block, SPLITS_PER_SM, blocks)
        if whole:
            shared = _share_rows(kernel, looped, whole, block, target)
        role, block, stages, warps = "split", shared.block, shared.stages, shared.warps
        splits = shared.per_sm * target.multiprocessors // max(1, programs)
        splits = max(1, min(splits, shared.most_splits))
    elif (
        not whole and looped.static and length * width <= _max_register_row(kernel, looped, limits)
    ):
        role, block = "whole", length
    _, contiguous_axis, _ = _axis_order(kernel)
    tiles += [Tile(looped.axes, block, role), *whole]
    all_tiles = tuple(sorted(tiles, key=lambda t: contiguous_axis in t.axes))  # it is last
    if sum(t.block > 1 for t in all_tiles) > 4:
        raise Unschedulable(Rule.TOO_MANY_GROUPS())
    elements = max_elements(kernel, all_tiles)
    if role == "loop" and not whole and columns == 1:
        warps = max(_num_warps(elements), min(32, elements // LOOPED_ROW_BLOCK_ELEMENTS_PER_WARP))
    if role == "whole" and programs == 1:
        warps = min(MAX_SPLIT_WARPS, elements // ELEMENTS_PER_WARP_ALONE)
    return Tiling(all_tiles, warps or _num_warps(elements), splits, stages)


@dataclass(frozen=True)
class _SharedLoop:
    """How program instances share a loop.

    There are `per_sm` of them a multiprocessor, and at most `most_splits` in all. If `warps` is 0,
    the elements of a block decide how many warps an instance has.
    """

    block: int
    per_sm: int
    most_splits: int
    stages: int = 1
    warps: int = 0


def _share_rows(
    kernel: Kernel, looped: _AxisGroup, whole: tuple[Tile, ...], block: int, target: GpuTarget
) -> _SharedLoop:
    """Return how program instances share a loop over whole rows."""
    row_elements = max_elements(kernel, whole)
    if not _accumulated_bytes(kernel, looped, whole):
        block = max(1, min(next_power_of_2(looped.extent), MAX_ROW_TILE // row_elements))
        warps = max(1, min(16, block * row_elements // ELEMENTS_PER_WARP_OF_RESULT))
        per_sm = min(INSTANCES_PER_SM, WARPS_PER_SM // warps)
        return _SharedLoop(block, per_sm, -(-looped.extent // block), warps=warps)
    per_sm = max(1, min(SPLITS_PER_SM_BESIDE_WHOLE, SM_ELEMENTS_BESIDE_WHOLE // row_elements))
    return _SharedLoop(
        block,
        per_sm,
        -(-looped.extent // (block * MIN_ROWS_OF_SPLIT)),
        _stages(kernel, looped, whole, row_elements * block, per_sm, target),
        max(4, min(MAX_SPLIT_WARPS, row_elements // ACCUMULATED_ROW_ELEMENTS_PER_WARP)),
    )


def _accumulated_bytes(kernel: Kernel, looped: _AxisGroup, whole: tuple[Tile, ...]) -> int:
    """Return the bytes for each element of a row that reductions over the looped axes hold."""
    value_axes, _ = iteration_axes(kernel)
    row_axes = {a for t in whole for a in t.axes}
    reductions = [s for s in kernel.body if isinstance(s, Reduce)]
    held = [r for r in reductions if not row_axes.isdisjoint(value_axes[r.name])]
    return sum(r.dtype.itemsize for r in held if not set(r.over).isdisjoint(looped.axes))


def _stages(
    kernel: Kernel,
    looped: _AxisGroup,
    whole: tuple[Tile, ...],
    elements: int,
    instances: int,
    target: GpuTarget,
) -> int:
    """Return how many iterations load ahead, into half of a multiprocessor's shared memory.

    One does if it fits at all.
    """
    sunk = sink_parameters(kernel, looped.axes, whole)
    _, stmt_axes = iteration_axes(kernel)
    itemsizes = {b.name: b.dtype.itemsize for b in kernel.buffers}
    row_axes = {a.name for a in kernel.axes} - set(looped.axes)
    loads = {
        (s.buffer, s.index): itemsizes[s.buffer]
        for s in kernel.body
        if isinstance(s, Load)
        and (s in sunk or not stmt_axes[s].isdisjoint(looped.axes))
        and not stmt_axes[s].isdisjoint(row_axes)
    }
    ahead = max(1, instances * elements * sum(loads.values()))
    fits = ahead <= target.shared_bytes - RESERVED_SHARED_BYTES
    return min(MAX_STAGES, max(1 + fits, 1 + target.shared_bytes // 2 // ahead))


def _max_register_row(kernel: Kernel, row: _AxisGroup, limits: TilingLimits) -> int:
    """Return the length of the longest row to hold in registers."""
    _, stmt_axes = iteration_axes(kernel)
    along_row = [s for s in kernel.body if not stmt_axes[s].isdisjoint(row.axes)]
    computed = {s.dtype.itemsize for s in along_row if isinstance(s, Compute)}
    loads = [s for s in along_row if isinstance(s, Load) and stmt_axes[s] >= set(row.axes)]
    if min(_loaded_itemsizes(kernel, row), default=0) >= 4 and max(computed, default=4) <= 4:
        fits = len({(s.buffer, s.index) for s in loads}) <= MAX_REGISTER_LOADS
        return max(limits.register_tile, limits.register_row if fits else 0)
    return min(limits.register_tile, limits.half_row)


def _has_aligned_rows(kernel: Kernel, row: _AxisGroup) -> bool:
    """Return whether rows begin at multiples of the bytes of an access, or can be divided there."""
    if row_start(kernel, row.axes) is not None:
        return True
    itemsizes = _loaded_itemsizes(kernel, row)
    return not any(row.extent * itemsize % WIDEST_THREAD_ACCESS_BYTES for itemsize in itemsizes)


def _loaded_itemsizes(kernel: Kernel, row: _AxisGroup) -> set[int]:
    """Return the bytes of an element of each buffer that is loaded along a row."""
    _, stmt_axes = iteration_axes(kernel)
    itemsizes = {b.name: b.dtype.itemsize for b in kernel.buffers}
    loads = [s for s in kernel.body if isinstance(s, Load)]
    return {itemsizes[s.buffer] for s in loads if not stmt_axes[s].isdisjoint(row.axes)}


def _column_block(extent: int, others: int, instances: int) -> int:
    """Return the columns a program instance reduces: fewer if that gives so many instances."""
    width = min(MAX_COLUMNS, next_power_of_2(extent))
    while width > MIN_COLUMNS and others * -(-extent // width) < instances:
        width //= 2
    return width


def max_elements(kernel: Kernel, tiles: tuple[Tile, ...]) -> int:
    """Return the most elements that any value has in a program instance."""
    _, stmt_axes = iteration_axes(kernel)
    most = 1
    for axes in stmt_axes.values():
        size = 1
        for t in tiles:
            if any(a in axes for a in t.axes):
                size *= t.block
        most = max(most, size)
    return most


def _num_warps(elements: int) -> int:
    """Return the warps: 8 elements a thread in up to 4 warps, then up to 32 in up to 16 warps."""
    return max(1, min(4, elements // 256), min(16, elements // 1024))


def next_power_of_2(n: int) -> int:
    """Return the least power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()
