"""Check that a tiling is legal for a launch, given a legal one."""

from __future__ import annotations

from tofuse.backends.cuda.schedule.choose_tiling import max_elements
from tofuse.cost.thresholds import INSTRUCTION_TILE
from tofuse.ir.dims import product
from tofuse.ir.kernel import Kernel
from tofuse.ir.rules import Rule
from tofuse.ir.tile import LOOPED, Tile, Tiling
from tofuse.schedule.schedule_legality import Unschedulable

MAX_BLOCK_ELEMENTS = 1 << 20  # of a Triton tensor
MAX_WARPS = 32  # of a program instance, in CUDA
MAX_BLOCKED_TILES = 4  # of more than one element, that the emitted text has dimensions for


def check_tiling(kernel: Kernel, tiling: Tiling, legal: Tiling, *, has_product: bool) -> None:
    """Raise Unschedulable unless a tiling is a legal variant of a `legal` one.

    It has the same tiles, with blocks of powers of two. Reduced tiles are whole, but the one that
    the legal tiling loops over, or the only one, may be looped over or split. The tiles of a matrix
    product keep their roles.
    """
    if [t.axes for t in tiling.tiles] != [t.axes for t in legal.tiles]:
        raise Unschedulable(Rule.ILLEGAL_TILING("these are not its axes"))
    reduced = [t for t in legal.tiles if t.role != "grid"]
    may_loop = [t for t in reduced if t.role in LOOPED] or (reduced if len(reduced) == 1 else [])
    for tile, old in zip(tiling.tiles, legal.tiles, strict=True):
        if not _is_legal_role(tile, old, old in may_loop and not has_product):
            raise Unschedulable(Rule.ILLEGAL_TILING(f"{old!r} cannot be {tile!r}"))
        if has_product and tile.block < min(INSTRUCTION_TILE, old.block):
            raise Unschedulable(Rule.ILLEGAL_TILING(f"{tile!r} of a matrix product"))
        if has_product and old.block == 1 < tile.block:
            raise Unschedulable(Rule.ILLEGAL_TILING(f"{tile!r} of many products"))
        if not _is_legal_block(kernel, tile, old):
            raise Unschedulable(Rule.ILLEGAL_TILING(f"the block of {tile!r}"))
    if sum(t.block > 1 for t in tiling.tiles) > MAX_BLOCKED_TILES:
        raise Unschedulable(Rule.TOO_MANY_GROUPS())
    if max_elements(kernel, tiling.tiles) > MAX_BLOCK_ELEMENTS:
        raise Unschedulable(Rule.ILLEGAL_TILING(f"more than {MAX_BLOCK_ELEMENTS} elements"))
    is_split = any(t.role == "split" for t in tiling.tiles)
    counts = tiling.warps, tiling.splits, tiling.stages, tiling.swizzle
    if min(counts) < 1 or tiling.warps > MAX_WARPS or not _is_power_of_2(tiling.warps):
        raise Unschedulable(Rule.ILLEGAL_TILING(f"{tiling.warps} warps, or a count of zero"))
    if tiling.splits > 1 and not is_split:
        raise Unschedulable(Rule.ILLEGAL_TILING("splits without a split tile"))
    if tiling.swizzle != legal.swizzle and not has_product:
        raise Unschedulable(Rule.ILLEGAL_TILING("only matrix products are swizzled"))


def _is_legal_role(tile: Tile, old: Tile, may_change: bool) -> bool:
    if tile.role == old.role:
        return True
    return may_change and old.role != "grid" and tile.role in ("whole", *LOOPED)


def _is_legal_block(kernel: Kernel, tile: Tile, old: Tile) -> bool:
    """Whether a block is a power of two; that of a whole tile holds all of its axes.

    The block of the legal tile may hold less, if rows are divided; `build_tiles` checks that they
    are.
    """
    if not _is_power_of_2(tile.block):
        return False
    if tile.role != "whole" or (tile.role, tile.block) == (old.role, old.block):
        return True
    extent = product(kernel.extent(a) for a in tile.axes)
    return isinstance(extent, int) and tile.block >= extent


def _is_power_of_2(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0
