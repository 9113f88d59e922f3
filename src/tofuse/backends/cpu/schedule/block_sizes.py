"""The sizes of the blocks of a kernel of products, from its extents, the caches and registers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tofuse.backends.cpu.llvm.matmul.pack import (
    AMX_MICROPANEL_ROWS,
    WIDTH,
    microkernel_size,
    micropanel_elements,
    micropanel_rows,
)
from tofuse.backends.cpu.schedule.product_analysis import ProductAnalysis, analyze_products
from tofuse.cost.thresholds import (
    BLOCKED_TASKS_PER_THREAD,
    LEFT_BLOCK_L2_SHARE,
    MAX_BLOCK_DEPTH_STEPS,
    MAX_PRODUCT_TILE_ROWS,
    MIN_BLOCK_DEPTH_STEPS,
    MIN_BLOCKED_FLOAT32_PRODUCT_EXTENT_AVX512,
    MIN_BLOCKED_PRODUCT_EXTENT,
    MIN_PRODUCT_TILE_COLUMNS,
    MIN_TILE_ROW_MICROPANELS,
    PANEL_COLUMNS,
)
from tofuse.ir.dims import Dim, size_hint
from tofuse.ir.kernel import Compute, Kernel, Load
from tofuse.ir.schedule import BlockedSchedule, Microkernel, Target
from tofuse.ir.types import DType


def blocked_schedules(kernel: Kernel, target: Target) -> list[BlockedSchedule]:
    """Return the tiles of a kernel of products, with either factor on the left.

    There are none if the products do not run by blocks, and one if the right factor is contiguous
    along its lines. On the left, a micropanel would use only a part of each of its cache lines.
    """
    found = analyze_products(kernel)
    if found is None or not target.fma:
        return []
    extents = [kernel.extent(a) for a in (found.rows, found.columns)]
    by_lines = [
        any(found.is_contiguous_along(pair[k], lines) for pair in found.factors)
        for k, lines in enumerate((found.rows, found.columns))
    ]
    schedule = _schedule(found, target)
    least = MIN_BLOCKED_PRODUCT_EXTENT
    if schedule.microkernel is Microkernel.F32 and target.avx512 and not any(by_lines):
        least = MIN_BLOCKED_FLOAT32_PRODUCT_EXTENT_AVX512
    shortest = min(extents, key=size_hint)
    if size_hint(shortest) < (least if isinstance(shortest, int) else MIN_BLOCKED_PRODUCT_EXTENT):
        return []
    return [schedule] if by_lines[1] else [schedule, _schedule(found.transposed(), target)]


def block_variants(
    kernel: Kernel, chosen: BlockedSchedule, target: Target
) -> list[BlockedSchedule]:
    """Return schedules to time beside the chosen one.

    Some have the other factor on the left. Others have half or twice the rows or columns of a tile,
    or the depth of a block.
    """
    found = [s for s in blocked_schedules(kernel, target) if s.rows != chosen.rows]
    for factor in (0.5, 2):
        rows, columns, depth = (
            int(factor * n) for n in (chosen.tile_rows, chosen.tile_columns, chosen.depth)
        )
        if rows >= chosen.micro_rows:
            found.append(replace(chosen, tile_rows=rows))
        if columns % WIDTH == 0:
            found.append(replace(chosen, tile_columns=columns))
        micropanels = _left_micropanels(chosen.micro_rows, depth, target)
        found.append(replace(chosen, depth=depth, left_micropanels=micropanels))
    return found


def _schedule(found: ProductAnalysis, target: Target) -> BlockedSchedule:
    """Return tiles of the rows and columns of an analysis."""
    kernel = found.kernel
    rows, columns = (kernel.extent(a) for a in (found.rows, found.columns))
    microkernel = microkernel_of(kernel, found.factors, target)
    is_tiled = microkernel is Microkernel.BF16_TILES
    most, micro_columns = microkernel_size(target)
    micro_rows = AMX_MICROPANEL_ROWS if is_tiled else micropanel_rows(rows, most)
    outer = math.prod(size_hint(kernel.extent(a)) for a in found.outer)
    tiles = outer * -(-size_hint(rows) // MAX_PRODUCT_TILE_ROWS)
    wanted = -(-BLOCKED_TASKS_PER_THREAD * target.threads // tiles)
    per_task = -(-size_hint(columns) // wanted)
    panels = -(-size_hint(columns) // max(MIN_PRODUCT_TILE_COLUMNS, min(PANEL_COLUMNS, per_task)))
    tile_columns = -(-size_hint(columns) // (panels * WIDTH)) * WIDTH
    tile_rows = _tile_rows(rows, outer * panels, micro_rows, target.threads)
    depth = _block_depth(tile_columns, target)
    return BlockedSchedule(
        found.rows,
        tile_rows,
        found.columns,
        tile_columns,
        microkernel,
        micro_rows,
        micro_columns,
        depth,
        _left_micropanels(micro_rows, depth, target),
    )


def _tile_rows(rows: Dim, others: int, micro_rows: int, threads: int) -> int:
    """Return the rows of a tile, if `others` tiles have the same rows.

    If there are few tiles, each thread gets equally many, unless tiles would have too few rows.
    """
    if not isinstance(rows, int):
        return MAX_PRODUCT_TILE_ROWS
    down = -(-rows // MAX_PRODUCT_TILE_ROWS)
    if others * down < BLOCKED_TASKS_PER_THREAD * threads:
        even = math.lcm(others, threads) // others
        rounded = -(-down // even) * even
        down = rounded if rows >= rounded * MIN_TILE_ROW_MICROPANELS * micro_rows else down
    return min(rows, -(-rows // (down * micro_rows)) * micro_rows)


def _block_depth(columns: int, target: Target) -> int:
    """Return the steps of a block: the most that keep a panel of columns in the L2 cache.

    They are a power of two. With more of them, a thread reads longer runs of each row of a factor,
    which the processor prefetches.
    """
    most = max(1, target.l2_bytes // (4 * columns))
    return min(MAX_BLOCK_DEPTH_STEPS, max(MIN_BLOCK_DEPTH_STEPS, 1 << most.bit_length() - 1))


def _left_micropanels(rows: int, depth: int, target: Target) -> int:
    """Return how many micropanels of a block of the left factor fill its share of the L2 cache."""
    micropanel_bytes = 4 * micropanel_elements(rows, depth_major=False, depth=depth)
    return max(1, int(target.l2_bytes * LEFT_BLOCK_L2_SHARE) // micropanel_bytes)


def microkernel_of(
    kernel: Kernel, factors: Sequence[tuple[str, str]], target: Target
) -> Microkernel:
    """Return the fastest instruction for products of pairs of a kernel's values.

    Those for bfloat16 need factors that bfloat16 holds exactly. They flush subnormal factors to
    zero.
    """
    is_bf16 = all(_is_bf16(kernel, v) for pair in factors for v in pair)
    if is_bf16 and target.bf16_tiles:
        return Microkernel.BF16_TILES
    return Microkernel.BF16_PAIRS if is_bf16 and target.bf16_dot else Microkernel.F32


def _is_bf16(kernel: Kernel, value: str) -> bool:
    """Whether bfloat16 holds a value exactly."""
    match kernel.definitions[value]:
        case Load(buffer=buffer):
            dtype = next(b.dtype for b in kernel.buffers if b.name == buffer)
            return dtype is DType.BF16 or dtype.fits_half
        case Compute(op="round_bf16"):
            return True
        case Compute(op="convert", operand_dtype=dtype):
            return dtype.fits_half
    return False
