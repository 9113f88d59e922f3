"""Alternative legal tilings of a kernel on a GPU, for autotuning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest

from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.schedule.split_launches import Updates
from tofuse.cost.thresholds import (
    ACCUMULATED_ROW_ELEMENTS_PER_WARP,
    LOOP_BLOCK,
    MAX_LARGEST_TO_TUNED_LAUNCH_POINTS,
    MAX_STAGES,
    MAX_TUNED_ROW,
    MAX_TUNED_TILINGS,
    MIN_SPLIT,
    SPLITS_PER_SM,
)
from tofuse.ir.dims import product, size_hint
from tofuse.ir.kernel import Kernel, Reduce
from tofuse.ir.tile import LOOPED, GpuTarget, Tile, TileNest, TileProgram, Tiling, TilingChoice
from tofuse.schedule.schedule_legality import Unschedulable


def tiling_variants(
    program: TileProgram, target: GpuTarget, updates: Updates = (), limit: int = MAX_TUNED_TILINGS
) -> list[TileProgram]:
    """Return programs of the same kernel that differ from one in the tiling of a launch.

    A tiling differs in one or two respects. Launches of many elements come first, and of each the
    variants in turn; small launches have none. There are at most `limit`.
    """
    bounds = program.nests[0].bounds if program.nests else {}
    found: list[TileProgram] = []
    for choice in _choices(program, target):
        if len(found) == limit:
            break
        with suppress(Unschedulable):
            variant = build_tiles(
                program.kernel, target, bounds=bounds, updates=updates, choice=choice
            )
            texts = {repr(p) for p in (program, *found)}
            if repr(variant) not in texts:
                found.append(variant)
    return found


def _choices(program: TileProgram, target: GpuTarget) -> Iterator[TilingChoice]:
    """Yield choices that differ in one launch, legal or not."""
    tilings = program.choice.tilings
    points = [_points(nest.kernel) for nest in program.nests]
    order = sorted(range(len(tilings)), key=lambda k: -points[k])
    neighbors = [
        [
            replace(program.choice, tilings=(*tilings[:k], tiling))
            for tiling in dict.fromkeys(_neighbors(program.nests[k], tilings[k], target))
            if tiling != tilings[k]
        ]
        for k in order
        if points[k] * MAX_LARGEST_TO_TUNED_LAUNCH_POINTS >= max(points)
    ]
    reductions = {s.over for s in program.kernel.body if isinstance(s, Reduce)}
    if len(reductions) > 1 and not program.choice.separate:
        yield TilingChoice((), separate=True)
    for row in zip_longest(*neighbors):
        yield from (choice for choice in row if choice is not None)


def _points(kernel: Kernel) -> int:
    return size_hint(product(a.extent for a in kernel.axes))


def _neighbors(nest: TileNest, tiling: Tiling, target: GpuTarget) -> Iterator[Tiling]:
    """Yield tilings that differ in one or two respects, the more promising ones first."""
    more, fewer = (replace(tiling, warps=w) for w in (2 * tiling.warps, tiling.warps // 2))
    blocked = [t for t in tiling.tiles if t.role in LOOPED] or _widest_grid_tile(tiling)
    roles = list(_other_roles(nest, tiling, target))
    yield from (more, fewer)
    yield from roles
    for tile in blocked:
        yield _with_block(tiling, tile, 2 * tile.block)
        yield _with_block(tiling, tile, tile.block // 2)
        yield _with_block(more, tile, 2 * tile.block)
        yield _with_block(fewer, tile, tile.block // 2)
    if nest.tiling.loop_tile is not None:
        stages = (s for s in (tiling.stages + 1, tiling.stages - 1) if 1 <= s <= MAX_STAGES)
        yield from (replace(tiling, stages=s) for s in stages)
    if any(t.role == "split" for t in tiling.tiles):
        yield replace(tiling, splits=2 * tiling.splits)
        yield replace(tiling, splits=tiling.splits // 2)
    for tile in tiling.tiles:
        if tile.role == "grid" and tile not in blocked:
            yield _with_block(tiling, tile, 2 * tile.block)
            yield _with_block(tiling, tile, tile.block // 2)
    for other in roles:
        yield from (replace(other, warps=w) for w in (2 * other.warps, other.warps // 2))


def _widest_grid_tile(tiling: Tiling) -> list[Tile]:
    grid = [t for t in tiling.tiles if t.role == "grid" and t.block > 1]
    return [max(grid, key=lambda t: t.block)] if grid else []


def _other_roles(nest: TileNest, tiling: Tiling, target: GpuTarget) -> Iterator[Tiling]:
    """Yield the tilings that hold the looped tile whole, loop over it, or split it."""
    axes = {a.name for a in nest.kernel.axes}  # a launch of partial results may lack some
    looped = [t for t in tiling.tiles if t.role in LOOPED]
    for tile in looped or [t for t in tiling.tiles if t.role == "whole"]:
        extent = product(nest.kernel.extent(a) for a in tile.axes if a in axes)
        if not axes.issuperset(tile.axes) or not isinstance(extent, int) or extent < 2:
            continue
        whole = 1 << (extent - 1).bit_length()
        others = product(t.block for t in tiling.tiles if t is not tile)
        if tile.role != "whole" and whole * size_hint(others) <= MAX_TUNED_ROW:
            warps = max(
                tiling.warps,
                min(32, whole * size_hint(others) // (2 * ACCUMULATED_ROW_ELEMENTS_PER_WARP)),
            )
            yield _with_role(replace(tiling, warps=warps), tile, "whole", whole)
        block = tile.block if tile.role != "whole" else min(LOOP_BLOCK, whole // 2)
        instances = nest.instance_count({}) // tiling.splits if _is_static(nest) else 0
        alone = tile.role == "split" and 2 * instances < target.multiprocessors
        if tile.role != "loop" and not alone:
            yield _with_role(tiling, tile, "loop", block)
        splits = SPLITS_PER_SM * target.multiprocessors // max(1, instances)
        long = extent * size_hint(others) >= MIN_SPLIT
        if tile.role != "split" and long and instances and splits > 1:
            yield replace(_with_role(tiling, tile, "split", block), splits=splits)


def _is_static(nest: TileNest) -> bool:
    return all(isinstance(a.extent, int) for a in nest.kernel.axes)


def _with_block(tiling: Tiling, tile: Tile, block: int) -> Tiling:
    """Return a tiling with another block of a tile; without its stages if nothing is looped."""
    return _with_role(tiling, tile, tile.role, block)


def _with_role(tiling: Tiling, tile: Tile, role: str, block: int) -> Tiling:
    changed = replace(tile, role=role, block=block)
    splits = tiling.splits if role == "split" or tile.role != "split" else 1
    stages = tiling.stages if role != "whole" else 1
    tiles = tuple(changed if t == tile else t for t in tiling.tiles)
    return replace(tiling, tiles=tiles, splits=splits, stages=stages)
