"""Cost of a product chain: its microkernels', and that of the nests of a block of rows."""

from __future__ import annotations

import math
from dataclasses import replace

from tofuse.analysis.footprint import Footprint
from tofuse.backends.cpu.cost.blocked_cost import SPEEDUP_OVER_F32, pack_element_ns
from tofuse.backends.cpu.cost.nest_cost import nest_cost
from tofuse.backends.cpu.cost.threads import threads_worth
from tofuse.cost.bandwidth import traffic_us
from tofuse.cost.kernel_cost import Cost
from tofuse.cost.machine import Machine
from tofuse.cost.thresholds import (
    CHAIN_BLOCK_L2_SHARE,
    CHAIN_REJECTION_MARGIN,
    MICROPANEL_COLUMNS,
    PACKED_RATE,
)
from tofuse.cost.work import kernel_work
from tofuse.ir.dims import size_hint
from tofuse.ir.nest import Nest
from tofuse.ir.product_chain import ChainProduct, ProductChain
from tofuse.ir.rules import Reason, Rule
from tofuse.ir.types import DType


def chain_cost(chain: ProductChain, machine: Machine) -> Cost:
    """Return the cost of a product chain, with size hints for symbols."""
    kernel, schedule = chain.kernel, chain.schedule
    extents = {a.name: size_hint(a.extent) for a in kernel.axes}
    rows = extents[schedule.rows]
    outer = math.prod(extents[a] for a in chain.outer)
    blocks = outer * -(-rows // schedule.tile_rows)
    share = rows / (-(-rows // schedule.tile_rows) * schedule.tile_rows)  # of a block in use
    computed = chain.computed
    nests_us = computed * sum(_nest_us(n, machine) for s in chain.stages for n in s.nests)
    products_ns = computed * sum(_product_ns(chain, p, machine) for p in chain.products)
    packs_ns = sum(_pack_ns(chain, p, machine) for p in chain.products)
    threads = max(1, min(machine.threads, blocks))
    threads = min(threads, threads_worth(math.prod(extents.values()), kernel_work(kernel)))
    stream_us = blocks * _stream_us(chain, replace(machine, threads=threads))
    work_us = blocks * share * nests_us + outer * rows * products_ns / 1e3 + packs_ns / 1e3
    us = machine.launch_us + (work_us + stream_us) * math.ceil(blocks / threads) / blocks
    us += machine.parallel_us if threads > 1 else 0.0
    nbytes = int(sum(Footprint(kernel).buffer_bytes().values()))
    launches = 2 * len(chain.products) * machine.launch_us
    stored_us = traffic_us(machine, 2 * outer * rows * _row_bytes(chain))
    only_chain_us = (packs_ns / 1e3 + stream_us) / threads
    separate_us = us - only_chain_us + stored_us + launches
    return Cost(us, us, 0.0, nbytes, threads, 0.0, separate_us, us)


def chain_rejection(cost: Cost) -> Reason | None:
    """Return why products are not one kernel: they take less time with their results in memory."""
    if cost.us <= CHAIN_REJECTION_MARGIN * cost.separate_us:
        return None
    return Rule.SLOWER_CHAIN(f"{cost.us:,.1f}", f"{cost.separate_us:,.1f}")


def _row_bytes(chain: ProductChain) -> int:
    """Return the bytes of a row of what products alone would store between the stages."""
    elements = 0
    for number, stage in enumerate(chain.stages):
        for p in stage.products:
            is_last = number + 2 == len(chain.stages)
            elements += 0 if is_last else size_hint(chain.kernel.extent(p.columns))
            elements += p.steps if number else 0
    return DType.F32.itemsize * elements


def _nest_us(nest: Nest, machine: Machine) -> float:
    """Return the time of one thread for a block of rows of a nest."""
    return max(0.0, nest_cost(nest, replace(machine, threads=1)).us - machine.launch_us)


def _product_ns(chain: ProductChain, p: ChainProduct, machine: Machine) -> float:
    """Return the ns of one thread to multiply a row with all columns of a right factor."""
    microkernel, *_ = chain.schedule.microkernels[p.number]
    columns = size_hint(chain.kernel.extent(p.columns))
    whole = -(-columns // MICROPANEL_COLUMNS) * MICROPANEL_COLUMNS
    flops = 2 * whole * p.steps * microkernel.step_elements
    return flops / (machine.flops * PACKED_RATE * SPEEDUP_OVER_F32[microkernel])


def _stream_us(chain: ProductChain, machine: Machine) -> float:
    """Return the time in which a thread reads all packed factors for a block of rows.

    It is 0 if the L2 cache holds them beside the block.
    """
    nbytes = sum(_right_elements(chain, p) for p in chain.products) * DType.F32.itemsize
    if nbytes <= (1 - CHAIN_BLOCK_L2_SHARE) * machine.l2_bytes:
        return 0.0
    is_cached = machine.threads * nbytes <= machine.l3_bytes // 2
    rate = machine.shared_rate if is_cached else machine.memory_rate
    return nbytes * machine.threads / rate / 1e3


def _right_elements(chain: ProductChain, p: ChainProduct) -> int:
    """Return the elements of a right factor that all rows of a block share."""
    depth = math.prod(size_hint(chain.kernel.extent(a)) for a in p.depth)
    return size_hint(chain.kernel.extent(p.columns)) * depth


def _pack_ns(chain: ProductChain, p: ChainProduct, machine: Machine) -> float:
    """Return the ns of one thread to pack all right factors of a product.

    Threads that share one of them pack it more than once.
    """
    kernel = chain.kernel
    around = math.prod(size_hint(kernel.extent(a)) for a in p.around)
    times = max(around, machine.threads)
    return times * _right_elements(chain, p) * pack_element_ns(p.right, machine)
