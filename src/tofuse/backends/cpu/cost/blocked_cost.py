"""Cost of a blocked contraction: the microkernel's, and that of the nests of its blocks."""

from __future__ import annotations

import math
from dataclasses import replace

from tofuse.analysis.footprint import Footprint
from tofuse.backends.cpu.cost.nest_cost import nest_cost
from tofuse.backends.cpu.cost.threads import threads_worth
from tofuse.cost.kernel_cost import Cost
from tofuse.cost.machine import Machine
from tofuse.cost.thresholds import (
    BLOCK_TRANSPOSE_ELEMENT_NS,
    HALF_FULL_MICROPANEL_COST_COLUMNS,
    MICROKERNEL_AMX_SPEEDUP_OVER_FLOAT32,
    MICROPANEL_COLUMNS,
    PACKED_RATE,
)
from tofuse.cost.work import kernel_work
from tofuse.ir.blocked import BlockedContraction, BlockProduct, Factor
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import Kernel, Store
from tofuse.ir.nest import Nest
from tofuse.ir.schedule import Microkernel

SPEEDUP_OVER_F32 = {
    Microkernel.F32: 1.0,
    Microkernel.BF16_PAIRS: 2.0,
    Microkernel.BF16_TILES: MICROKERNEL_AMX_SPEEDUP_OVER_FLOAT32,
}


def blocked_cost(blocked: BlockedContraction, machine: Machine) -> Cost:
    """Return the cost of a blocked contraction, with size hints for symbols."""
    kernel, schedule = blocked.kernel, blocked.schedule
    extents = {a.name: size_hint(a.extent) for a in kernel.axes}
    rows, columns = extents[schedule.rows], extents[schedule.columns]
    outer = math.prod(extents[a] for a in blocked.outer)
    down, across = -(-rows // schedule.tile_rows), -(-columns // schedule.tile_columns)
    work_ns = outer * rows * columns * _element_ns(blocked.epilogue, _store_count(kernel), machine)
    for p in blocked.products:
        depth = math.prod(extents[a] for a in p.depth)
        work_ns += outer * depth * _product_ns(blocked, p, machine, rows, columns, down, across)
    points = math.prod(extents.values())
    threads = max(1, min(machine.threads, outer * down * across))
    threads = min(threads, threads_worth(points, kernel_work(kernel)))
    imbalance = math.ceil(outer * down * across / threads) * threads / (outer * down * across)
    us = machine.launch_us + work_ns * imbalance / threads / 1e3
    us += machine.parallel_us if threads > 1 else 0.0
    nbytes = int(sum(Footprint(kernel).buffer_bytes().values()))
    return Cost(us, us, 0.0, nbytes, threads, 0.0, us, us)


def _product_ns(
    blocked: BlockedContraction,
    p: BlockProduct,
    machine: Machine,
    rows: int,
    columns: int,
    down: int,
    across: int,
) -> float:
    """Return the ns of one thread for a step of the depth: of the microkernel and the packs.

    Rows are packed for each tile of columns, and columns for each tile of rows.
    """
    micro = blocked.schedule.micro_rows
    uses_tiles = blocked.schedule.microkernel is Microkernel.BF16_TILES
    whole_rows = -(-rows // micro) * micro
    rest = columns % MICROPANEL_COLUMNS
    is_half = 0 < rest <= MICROPANEL_COLUMNS // 2 and not uses_tiles
    whole_columns = -(-columns // MICROPANEL_COLUMNS) * MICROPANEL_COLUMNS
    whole_columns -= MICROPANEL_COLUMNS - HALF_FULL_MICROPANEL_COST_COLUMNS if is_half else 0
    rate = PACKED_RATE * SPEEDUP_OVER_F32[blocked.schedule.microkernel]
    product = 2 * whole_rows * whole_columns / (machine.flops * rate)
    left = across * rows * _element_ns(p.left.pack, 1, machine)
    return product + left + down * columns * pack_element_ns(p.right, machine)


def pack_element_ns(right: Factor, machine: Machine) -> float:
    """Return the ns that one thread takes to pack an element of a right factor."""
    transpose_ns = BLOCK_TRANSPOSE_ELEMENT_NS if right.line_major else 0.0
    return _element_ns(right.pack, 1, machine) + transpose_ns


def _element_ns(nest: Nest, results: int, machine: Machine) -> float:
    """Return the ns that a nest takes for one element of a block.

    The nest stores `results` values for each element. If an axis is unrolled, one iteration stores
    those of several elements.
    """
    cost = nest_cost(nest, replace(machine, threads=1))
    points = math.prod(size_hint(a.extent) for a in nest.kernel.axes)
    elements = points * _store_count(nest.kernel) / results
    return max(0.0, cost.us - machine.launch_us) * 1e3 / max(1, elements)


def _store_count(kernel: Kernel) -> int:
    return sum(isinstance(s, Store) for s in kernel.body)
