"""The predicted time of GPU kernels: bytes, instructions, and how many instances run at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tofuse.analysis.footprint import Footprint, widest_element
from tofuse.backends.cuda.cost.gpu_machine import GpuMachine
from tofuse.backends.cuda.cost.tile_registers import (
    equal_neighbours,
    estimate_registers,
    vector_elements,
)
from tofuse.cost.kernel_cost import Cost
from tofuse.cost.thresholds import WIDEST_THREAD_ACCESS_BYTES
from tofuse.cost.work import OP_CLASSES
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import (
    WRITES,
    Compute,
    Gather,
    Load,
    Reduce,
    Stmt,
    Store,
    Uniform,
    iteration_axes,
)
from tofuse.ir.tile import Contraction, Tile, TileLoop, TileNest, TileProgram, draws_halves
from tofuse.ir.types import DType

# Instructions of a thread for an element, by the class of the op; where the result is rounded to
# half precision, the second number. Counted in machine code for 9.0: "GPU cost model".
INSTRUCTIONS: Mapping[str, tuple[float, float]] = {
    "cheap": (1.0, 1.0),
    "divide": (8.0, 4.0),
    "exp": (3.0, 2.0),
    "tanh": (14.0, 5.0),
    "sin": (22.0, 13.0),
    "erf": (20.0, 9.0),
    "pow": (40.0, 40.0),
    "gamma": (100.0, 100.0),
    "remainder": (12.0, 12.0),
}
SPECIAL = frozenset({"divide", "exp", "tanh", "sin", "erf"})  # one special function an element
UNIFORM_INSTRUCTIONS = 24.0  # of a number of Philox-4x32-10, a quarter of a counter's words
BOOLEAN_INSTRUCTIONS = 15.0  # an eighth of a counter's words
BOOLEAN_INSTRUCTIONS_IN_FOURS = 24.0  # where a thread uses half of the counter that it computes
ACCESS_INSTRUCTIONS = 3.0  # of an access, with its address and mask
ELEMENT_INSTRUCTIONS = 8.0  # of an access of one element, as in rows that are not aligned
CONVERT_INSTRUCTIONS = 0.5  # of a half-precision element: two at a time
GATHER_INSTRUCTIONS = 6.0
L1_BUFFER_BYTES = 32 * 1024  # of a buffer that stays in L1, and is loaded once: not measured
SECTOR_BYTES = 32  # the unit of a transfer
# Nanoseconds until an instance goes on: "GPU cost model"
LOAD_NS, NEAR_LOAD_NS, REDUCE_NS, LAUNCH_NS = 700.0, 300.0, 120.0, 900.0
ISSUE_SHARE = 0.65  # of the schedulers' rate that kernels reach: "GPU cost model"
CONTRACTION_SHARE = 0.7  # of the matrix instructions' rate: not measured
FLOAT32_PRODUCTS = 0.8  # of the float32 rate, without matrix instructions: not measured
OVERLAP = 0.05  # of the second longest that the longest does not hide: "GPU cost model"


@dataclass(frozen=True)
class TileCost:
    """The predicted microseconds of one launch, and what they consist of.

    `latency_us` is the time of one wave of instances after the other, if nothing else binds.
    """

    us: float
    memory_us: float
    l2_us: float
    issue_us: float
    special_us: float
    product_us: float
    latency_us: float
    nbytes: float
    registers: int
    fit: int  # program instances of a multiprocessor

    @property
    def bound(self) -> str:
        """What takes longest: memory, l2, issue, special, product or latency."""
        names = ("memory", "l2", "issue", "special", "product", "latency")
        times = {name: vars(self)[f"{name}_us"] for name in names}
        return max(times, key=lambda name: times[name])


def tile_program_us(program: TileProgram, gpu: GpuMachine) -> float:
    """Return the predicted microseconds of a GPU kernel, with size hints for symbols."""
    return sum(cost.us for cost in tile_costs(program, gpu))


def gpu_cost(program: TileProgram, gpu: GpuMachine) -> Cost:
    """Return the predicted cost of a GPU kernel, as of a kernel on the CPU.

    At best it moves each byte of its arguments and results once, in one launch.
    """
    launches = tile_costs(program, gpu)
    nbytes = sum(Footprint(program.kernel).buffer_bytes().values())
    return Cost(
        us=sum(c.us for c in launches),
        work_us=sum(max(c.issue_us, c.special_us, c.product_us) for c in launches),
        traffic_us=sum(c.memory_us for c in launches),
        nbytes=int(nbytes),
        threads=gpu.multiprocessors,
        recomputed_adds=0.0,
        separate_us=0.0,
        least_us=gpu.launch_us + nbytes / gpu.memory_rate / 1e3,
    )


def tile_costs(program: TileProgram, gpu: GpuMachine) -> list[TileCost]:
    """Return the predicted cost of each launch."""
    return [_Launch(nest, program, gpu).cost() for nest in program.nests]


@dataclass(eq=False)
class _Launch:
    nest: TileNest
    program: TileProgram
    gpu: GpuMachine
    issued: float = 0.0  # instructions of warps
    special: float = 0.0
    flops: dict[DType, float] = field(default_factory=dict)
    l2_bytes: float = 0.0
    memory_bytes: float = 0.0
    chain_ns: float = 0.0  # of one instance, from load to load and over its reductions

    def cost(self) -> TileCost:
        gpu = self.gpu
        for number, loop in enumerate(self.nest.loops):
            self._add_loop(loop, number)
        self._add_memory()
        registers = estimate_registers(self.nest, self._itemsizes)
        warps = self.nest.tiling.warps
        fit = max(1, gpu.instances(registers, self._shared_bytes(), warps))
        waves = math.ceil(self._instances / (gpu.multiprocessors * fit))
        busy = min(1.0, self._instances / gpu.multiprocessors)
        issue = self.issued / (gpu.issue_rate * ISSUE_SHARE * busy) / 1e3
        special = self.special / (gpu.special_rate * busy) / 1e3
        product = sum(n / self._product_rate(d) for d, n in self.flops.items()) / busy / 1e3
        memory, l2 = self.memory_bytes / gpu.memory_rate / 1e3, self.l2_bytes / gpu.l2_rate / 1e3
        latency = waves * self.chain_ns / 1e3
        longest, *others = sorted((memory, l2, issue, special, product, latency), reverse=True)
        us = gpu.launch_us + longest + OVERLAP * others[0]
        parts = (memory, l2, issue, special, product, latency)
        return TileCost(us, *parts, self.memory_bytes, registers, fit)

    # -- how often -------------------------------------------------------------------------------

    @cached_property
    def _statement_axes(self) -> Mapping[Stmt, frozenset[str]]:
        return iteration_axes(self.nest.kernel)[1]

    @property
    def _tiles(self) -> tuple[Tile, ...]:
        return self.nest.tiling.tiles

    @cached_property
    def _instances(self) -> int:
        grid = [self._blocks(t) for t in self._tiles if t.role == "grid"]
        return math.prod(grid) * self.nest.tiling.splits

    def _blocks(self, tile: Tile) -> int:
        return max(1, math.ceil(size_hint(self.nest.extent(tile)) / tile.block))

    def _executed(self, axes: Iterable[str]) -> float:
        """Return for how many elements a statement with these axes runs, in all instances."""
        own, times = frozenset(axes), 1.0
        for t in self._tiles:
            if not own.isdisjoint(t.axes):
                times *= self._blocks(t) * t.block
            elif t.role == "grid":
                times *= self._blocks(t)
            elif t.role == "split":
                times *= self.nest.tiling.splits
        return times

    # -- arithmetic ------------------------------------------------------------------------------

    def _add_loop(self, loop: TileLoop, number: int) -> None:
        tile, stages = self.nest.tiling.loop_tile, self.nest.tiling.stages
        steps = 1.0
        if tile is not None and loop.body:
            share = self.nest.tiling.splits if tile.role == "split" else 1
            steps = math.ceil(self._blocks(tile) / share)
        # rounded factors are operands of matrix instructions
        apart = {n for c in self.nest.contractions for n in (c.product, c.left, c.right)}
        contracted = {c.total: c for c in self.nest.contractions}
        for part, repeats in ((loop.prologue, 1.0), (loop.body, steps)):
            reduced = loaded = False
            for s in part:
                if isinstance(s, Reduce) and s in contracted:
                    self._add_product(contracted[s])
                elif isinstance(s, (*WRITES, Load)) or s.name not in apart:
                    self._add_statement(s)
                reduced |= isinstance(s, Reduce) and s not in loop.reductions
                loaded |= isinstance(s, (Load, Gather))
            ahead = stages if repeats > 1 else 1
            load_ns = LOAD_NS if number == 0 else NEAR_LOAD_NS  # the first pass has loaded it
            chain = load_ns * loaded + self._reduce_ns() * reduced
            self.chain_ns += chain * math.ceil(repeats / ahead)
        self.chain_ns += self._reduce_ns() * bool(loop.reductions) + LAUNCH_NS * (number == 0)

    def _reduce_ns(self) -> float:
        """Return the time of a reduction: exchanges in a warp, then between warps."""
        return REDUCE_NS * (1 + math.log2(self.nest.tiling.warps) / 2)

    def _add_statement(self, s: Stmt) -> None:
        axes = self._statement_axes[s]
        elements = self._executed(axes) / min(vector_elements(self._itemsizes), self._repeats(axes))
        self.issued += elements * self._instructions(s) / 32
        if isinstance(s, Compute) and OP_CLASSES.get(s.op) in SPECIAL:
            self.special += elements / 32

    def _instructions(self, s: Stmt) -> float:
        match s:
            case Compute():
                kind = OP_CLASSES.get(s.op, "cheap")
                words = max(1, s.operand_dtype.itemsize // 4)
                return words * INSTRUCTIONS[kind][s.rounds_to is not None]
            case Load() | Store():
                return self._access_instructions(s)
            case Gather():
                return self._access_instructions(s) + GATHER_INSTRUCTIONS
            case Uniform(below=None):
                return UNIFORM_INSTRUCTIONS
            case Uniform():
                if draws_halves(widest_element(self.nest.kernel)):
                    return BOOLEAN_INSTRUCTIONS
                return BOOLEAN_INSTRUCTIONS_IN_FOURS
            case _:
                return 1.0

    def _access_instructions(self, s: Load | Store | Gather) -> float:
        itemsize = self._itemsizes[s.buffer]
        width = self._access_bytes(s)
        convert = CONVERT_INSTRUCTIONS if itemsize < 4 else 0.0
        if width == itemsize < WIDEST_THREAD_ACCESS_BYTES:
            return ELEMENT_INSTRUCTIONS + convert
        return ACCESS_INSTRUCTIONS * itemsize / width + convert

    def _add_product(self, c: Contraction) -> None:
        tiles = [t for t in self._tiles if t.block > 1 or t.role != "grid"]
        elements = self._executed(a for t in tiles for a in t.axes)
        self.flops[c.dtype] = self.flops.get(c.dtype, 0.0) + 2 * elements

    def _product_rate(self, dtype: DType) -> float:
        """Return the operations a nanosecond of matrix products."""
        if dtype is DType.F32:
            return 64 * self.gpu.float_rate * FLOAT32_PRODUCTS
        return self.gpu.half_flops * CONTRACTION_SHARE

    # -- memory ----------------------------------------------------------------------------------

    @cached_property
    def _itemsizes(self) -> dict[str, int]:
        sizes = {b.name: b.dtype.itemsize for b in self.nest.kernel.buffers}
        return sizes | {w.name: w.dtype.itemsize for w in self.program.workspaces}

    def _access_bytes(self, s: Load | Store | Gather) -> int:
        """Return the bytes of one access of a thread: 16, or an element of an unaligned row."""
        itemsize, blocked = self._itemsizes[s.buffer], [t for t in self._tiles if t.block > 1]
        contiguous = (t for t in blocked if any(s.index.coefficient(a) == 1 for a in t.axes))
        tile = next(contiguous, None)
        if tile is None:
            return itemsize
        others = [c for a, c in s.index.terms if a not in tile.axes]
        aligned = all(size_hint(c) * itemsize % WIDEST_THREAD_ACCESS_BYTES == 0 for c in others)
        aligned |= self.nest.alignment is not None  # such rows are divided
        return min(WIDEST_THREAD_ACCESS_BYTES, tile.block * itemsize) if aligned else itemsize

    def _add_memory(self) -> None:
        """Add the bytes of transfers between L2 and the processors, and between memory and L2."""
        footprint = Footprint(self.nest.kernel)
        largest = footprint.buffer_bytes()
        self.memory_bytes += sum(largest.values())
        seen: set[tuple[str, object]] = set()
        held = self._bytes_in_flight(footprint)
        for s, again in self._accesses():
            if isinstance(s, Gather):
                moved = self._gathered_bytes(s)
            else:
                moved = self._executed(s.index.axes) / self._repeats(s.index.axes)
                moved *= self._itemsizes[s.buffer] * self._sector_waste(s)
                if (nbytes := largest[s.buffer]) <= L1_BUFFER_BYTES:
                    moved = min(moved, nbytes * self.gpu.multiprocessors)
            self.l2_bytes += moved
            if again or (s.buffer, s.index) in seen:
                beyond = max(0.0, 1 - self.gpu.l2_bytes / 2 / max(1.0, held))
                self.memory_bytes += beyond * footprint.access_bytes(s)
            seen.add((s.buffer, s.index))
        self.memory_bytes -= self._l2_hits(largest)

    def _accesses(self) -> Iterator[tuple[Load | Store | Gather, bool]]:
        """Yield each access of each loop, and whether a loop before has loaded the same."""
        loaded: set[Stmt] = set()
        for loop in self.nest.loops:
            for s in (*loop.prologue, *loop.body):
                if isinstance(s, (Load, Store, Gather)):
                    yield s, s in loaded
            loaded.update(loop.prologue, loop.body)

    def _gathered_bytes(self, s: Gather) -> float:
        """Return the bytes of the sectors of a gather, whose elements are apart or in rows."""
        kernel = self.nest.kernel
        points = math.prod(size_hint(kernel.extent(a)) for a in self._statement_axes[s])
        in_rows = any(step == 1 for _, step in s.index.terms)
        return points * (self._itemsizes[s.buffer] if in_rows else SECTOR_BYTES)

    def _repeats(self, axes: Collection[str]) -> int:
        """Return how many neighbouring elements of a block share a value with these axes."""
        return math.prod(equal_neighbours(self.nest, t, axes) for t in self._tiles)

    def _sector_waste(self, s: Load | Store) -> float:
        """Return the bytes of the sectors that an access touches, over the bytes it needs."""
        itemsize = self._itemsizes[s.buffer]
        for t in self._tiles:
            for a in t.axes:
                if abs(size_hint(s.index.coefficient(a))) == 1:
                    extent = size_hint(self.nest.kernel.extent(a))
                    run = min(t.block if t.role in ("grid", "whole") else extent, extent)
                    return max(1.0, SECTOR_BYTES / max(1, run * itemsize))
        return 1.0 if not s.index.axes else SECTOR_BYTES / itemsize

    def _bytes_in_flight(self, footprint: Footprint) -> float:
        """Return the bytes that all instances at work go through before they come back to them."""
        whole = sum(footprint.buffer_bytes().values())
        running = self.gpu.multiprocessors * self.gpu.max_warps / self.nest.tiling.warps / 2
        return whole * min(1.0, running / self._instances)

    def _l2_hits(self, touched: Mapping[str, float]) -> float:
        """Return the bytes of this launch that earlier ones have left in L2."""
        known: set[str] = set()
        for nest in self.program.nests[: self.program.nests.index(self.nest)]:
            known |= {b.name for b in nest.kernel.buffers}
        near = sum(n for name, n in touched.items() if name in known)
        return near if sum(touched.values()) < self.gpu.l2_bytes / 2 else 0.0

    def _shared_bytes(self) -> int:
        """Return the shared memory of what loops load ahead."""
        tiling, tile = self.nest.tiling, self.nest.tiling.loop_tile
        if tile is None or tiling.stages < 2:
            return 0
        loads = {
            (s.buffer, s.index) for lp in self.nest.loops for s in lp.body if isinstance(s, Load)
        }
        total = 0
        for buffer, index in loads:
            used = (t for t in tiling.tiles if not set(index.axes).isdisjoint(t.axes))
            total += math.prod(t.block for t in used) * self._itemsizes[buffer]
        return (tiling.stages - 1) * total if not self.nest.contractions else tiling.stages * total
