"""What a loop nest costs: arithmetic by class, bytes by the memory they come from, threads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tofuse.analysis.footprint import Access, Spans
from tofuse.analysis.guard_coverage import shares
from tofuse.cost.machine import Machine
from tofuse.cost.work import kernel_work, op_class, threads_worth
from tofuse.ir.dims import hint, product
from tofuse.ir.interleave import is_spaced, shuffles
from tofuse.ir.kernel import Compute, Load, Reduce, Stmt, Store, Take, Uniform, iteration_axes
from tofuse.ir.nest import (
    Do,
    For,
    Nest,
    Node,
    Phase,
    Restore,
)
from tofuse.ir.schedule import Loop
from tofuse.ir.tile import TileProgram
from tofuse.ir.types import DType

LINE = 64  # bytes that memory moves at once
OVERLAP = 0.15  # of the smaller of arithmetic and traffic is not hidden behind the larger
MARGIN = 2.5  # by which a merge must be predicted slower: what it is held against is a lower bound
SHORT_ROW, UNFORESEEN_NS = 512, 1.5  # bytes of a row that ends unnoticed; what a line of it takes
SHUFFLE = 2  # cheap ops that one of a vector takes
FEW_LINES = 512  # strided lines that stay in the nearest cache from one loop to the next
PARTLY = (0.75, 1.25)  # of the shared cache: between, part of what is read again is still there


@dataclass(frozen=True)
class Cost:
    """Of one launch. `work_us` and `traffic_us` are what arithmetic and memory take alone, on the
    threads there are, `even_us` all in long vectors of neighbours; `again` counts additions' worth
    of work done more than once a value, and `apart_us` is a bound from below on two kernels that
    do it once and pass it on in memory."""

    us: float
    work_us: float
    traffic_us: float
    nbytes: int
    threads: int
    again: float
    apart_us: float
    even_us: float


def nest_cost(nest: Nest, machine: Machine) -> Cost:
    """The cost of a scheduled kernel, every symbol being what it was first."""
    return _Estimate(nest, machine).run()


def tiles_us(program: TileProgram, machine: Machine) -> float:
    """Microseconds of a GPU's kernel: its launches, and each byte it touches moved once.

    Arithmetic is not reckoned, nor rows that are read again. It is a prediction for the report;
    decisions for GPUs do not rest on it.
    """
    touched = sum(Spans(program.kernel).of_buffers().values())
    passed = sum(2 * hint(w.elements) * w.dtype.itemsize for w in program.workspaces)
    return len(program.nests) * machine.launch_us + traffic_us(machine, touched + passed)


def loss(cost: Cost) -> str | None:
    """Why a kernel is worse than its parts by themselves, by a clear margin; None where it is not.

    What may be lost is work repeated in loops that it does not depend on.
    """
    if not cost.again or cost.us <= MARGIN * cost.apart_us:
        return None
    return (
        f"one kernel would do {_digits(cost.again)} additions' worth of work again and take about "
        f"{_digits(cost.us)} us, kernels apart {_digits(cost.apart_us)} us"
    )


def _digits(x: float) -> str:
    """Two digits: what is predicted has no more."""
    return f"{float(f'{x:.1e}'):,.0f}" if x >= 10 else f"{x:.1f}"


def traffic_us(machine: Machine, nbytes: float) -> float:
    """Microseconds that this much reading and writing takes, all threads taking part."""
    return nbytes / _rate(machine, nbytes, machine.threads) / 1e3


def _rate(machine: Machine, footprint: float, threads: int) -> float:
    """Bytes a nanosecond from the nearest memory that holds `footprint` bytes."""
    if footprint <= machine.l2_bytes * threads:
        return machine.l2_rate * threads
    near = min(machine.l3_rate * threads, machine.shared_rate)
    far = min(machine.core_rate * threads, machine.memory_rate)
    least, most = (share * machine.l3_bytes for share in PARTLY)
    if footprint <= least:
        return near
    if footprint >= most:
        return far
    missed = (footprint - least) / (most - least)
    return 1 / ((1 - missed) / near + missed / far)


@dataclass(eq=False)
class _Estimate:
    nest: Nest
    machine: Machine
    threads: int = 1  # that the phase at hand runs on
    work_ns: float = 0.0  # of one thread doing all
    even_ns: float = 0.0  # of that, what neighbours in full vectors would take
    strided_ns: float = 0.0  # what an access takes more that is none
    nbytes: dict[str, float] = field(default_factory=dict)  # from home, by buffer
    again_ns: float = 0.0  # traffic of rereading
    seen: dict[str, tuple[int, tuple[Loop, ...]]] = field(default_factory=dict)
    spent: list[tuple[Stmt, float, float]] = field(default_factory=list)  # points and ns, by place
    values: Mapping[str, frozenset[str]] = field(default_factory=dict)  # axes each depends on
    phase: int = 0
    shares: dict[Stmt, float] = field(default_factory=dict)  # of the points that need it

    def __post_init__(self) -> None:
        schedule = self.nest.schedule
        self.inside = [lp.axis for lp in schedule.loops[-1:] if schedule.vector > 1]
        self.spans = Spans(self.nest.kernel, *self.inside)

    def run(self) -> Cost:
        kernel, schedule, machine = self.nest.kernel, self.nest.schedule, self.machine
        self.values, _ = iteration_axes(kernel)
        strips = {lp.axis for lp in schedule.loops if lp.strip}
        around = [lp.axis for lp in schedule.loops[:-1] if lp.axis not in strips]
        self.shares = shares(kernel, (*self.inside, *around))
        points = hint(product(a.extent for a in kernel.axes))
        worth = min(machine.threads, threads_worth(points, kernel_work(kernel)))
        total = even = machine.launch_us * 1e3
        work, traffic, widest = 0.0, 0.0, 1
        spans = self.spans.of_buffers()
        footprint = sum(spans.values())
        past = frozenset(b.name for b in kernel.buffers if b.role == "stream")
        cached = sum(span for name, span in spans.items() if name not in past)
        for k, phase in enumerate(self.nest.phases):
            self.phase, self.nbytes = k, {}
            self.work_ns = self.even_ns = self.again_ns = 0.0
            trips = math.prod(self._trips(lp, phase.band) for lp in phase.band)
            self.threads = max(1, min(worth, trips)) if phase.band else 1
            share = math.ceil(trips / self.threads) * self.threads / max(1, trips)
            widest = max(widest, self.threads)
            self._phase(phase, trips)
            busy = self.work_ns * share / self.threads
            moved = self._moved(past, cached)
            even += _together(self.even_ns * share / self.threads, moved)
            moved += self.again_ns
            total += _together(busy, moved)
            work, traffic = work + busy, traffic + moved
        if widest > 1:
            waking = machine.parallel_us * 1e3 * (0.5 + 0.5 * len(self.nest.phases))
            total, even = total + waking, even + waking
        repeated, passed, needed = self._recomputed()
        spared = work * (1 - needed)
        once = machine.launch_us * 2e3 + _together(work - spared, traffic)
        apart = once + passed / _rate(machine, passed, widest)
        again = repeated / machine.cost("cheap")
        us, work, traffic, apart, even = (ns / 1e3 for ns in (total, work, traffic, apart, even))
        return Cost(us, work, traffic, int(footprint), widest, again, apart, even)

    def _moved(self, past: frozenset[str], cached: float) -> float:
        """ns of each byte from its home; what is stored past the caches takes no place in them."""
        streamed = sum(n for name, n in self.nbytes.items() if name in past)
        rest = sum(self.nbytes.values()) - streamed
        machine = self.machine
        to_memory = min(machine.core_rate * self.threads, machine.memory_rate)
        return streamed / to_memory + rest / _rate(machine, cached, self.threads)

    def _phase(self, phase: Phase, trips: int) -> None:
        self._nodes(phase.head, (), 1.0, 1.0)
        self._nodes(phase.body, phase.band, float(trips), float(trips))
        for p in phase.partials:
            elements = 1 if p.array is None else hint(p.array.elements)
            per = self.machine.cost("load") * 2 + self.machine.cost("cheap")
            self.work_ns += self.threads * (elements * per * self.threads + self.machine.fold_ns)

    def _nodes(
        self, nodes: tuple[Node, ...], around: tuple[Loop, ...], times: float, points: float
    ) -> None:
        """Add what nodes cost that run inside the loops `around` for so many points, and `times`
        times with the idle lanes of last vectors."""
        for node in nodes:
            match node:
                case Do():
                    before, self.strided_ns = self.work_ns, 0.0
                    self._statement(node.stmt, around, times * self.shares.get(node.stmt, 1.0))
                    spent = self.work_ns - before
                    self.spent.append((node.stmt, points, spent))
                    full = times * (1 if self._in_vectors(around) else self.machine.lanes)
                    self.even_ns += (spent - self.strided_ns) * points / max(1.0, full)
                case Restore():
                    self._arithmetic("load", node.scratch.dtype, around, times)
                case For():
                    self._loop(node, around, times, points)

    def _loop(self, node: For, around: tuple[Loop, ...], times: float, points: float) -> None:
        machine = self.machine
        trips = self._trips(node.loop, around)
        self.work_ns += times * (machine.row_ns + machine.fold_ns * self._folds(node))
        last = node.loop == self.nest.schedule.loops[-1] and self.nest.schedule.vector > 1
        lanes = self.nest.schedule.vector if last else 1
        padded = math.ceil(trips / lanes) * lanes
        self._nodes(node.body, (*around, node.loop), times * padded, points * trips)

    def _folds(self, node: For) -> int:
        vectors = node.loop == self.nest.schedule.loops[-1] and self.nest.schedule.vector > 1
        return sum(1 for a in node.reductions if a.array is None) if vectors else 0

    def _trips(self, loop: Loop, around: tuple[Loop, ...]) -> int:
        """How often a loop runs each time it is entered."""
        extent = hint(self.nest.kernel.extent(loop.axis))
        if loop.strip:
            return -(-extent // loop.strip)
        tile = next((lp.strip for lp in around if lp.axis == loop.axis and lp.strip), 0)
        return min(extent, tile) if tile else extent

    # -- statements ------------------------------------------------------------------------------

    def _statement(self, stmt: Stmt, around: tuple[Loop, ...], times: float) -> None:
        match stmt:
            case Load() | Store() | Take():
                self._access(stmt, around, times)
            case Reduce():
                kept = self._kept_in_array(stmt)
                if kept:
                    self._arithmetic("load", stmt.dtype, around, 2 * times)
                factor = 3 if stmt.position is not None else 1
                self._arithmetic("cheap", stmt.dtype, around, factor * times)
            case Compute():
                wide = max(stmt.dtype.itemsize, stmt.operand_dtype.itemsize) == 8
                dtype = DType.F64 if wide else DType.F32
                self._arithmetic(op_class(stmt.op), dtype, around, times)
            case Uniform():
                self._arithmetic("random", stmt.dtype, around, times)
            case _:
                self._arithmetic("cheap", stmt.dtype, around, times)

    def _kept_in_array(self, r: Reduce) -> bool:
        """Whether a reduction adds to an array, because it keeps axes of loops inside its own."""
        inner = [lp.axis for lp in self.nest.schedule.loops]
        opens = min(inner.index(a) for a in r.over)
        return any(a not in r.over for a in inner[opens:] if a not in inner[:opens])

    def _arithmetic(self, kind: str, dtype: DType, around: tuple[Loop, ...], times: float) -> None:
        """`times` elements of an op; outside the vector loop an element takes a whole vector."""
        per = self.machine.cost(kind) * (2 if dtype.itemsize == 8 else 1)
        if not self._in_vectors(around):
            per *= self.machine.lanes if kind not in ("gather", "strided") else 1
        self.work_ns += per * times

    def _in_vectors(self, around: tuple[Loop, ...]) -> bool:
        schedule = self.nest.schedule
        return bool(around) and around[-1] == schedule.loops[-1] and schedule.vector > 1

    # -- memory ----------------------------------------------------------------------------------

    def _access(self, stmt: Access, around: tuple[Loop, ...], times: float) -> None:
        buffer = next(b for b in self.nest.kernel.buffers if b.name == stmt.buffer)
        vector = around[-1].axis if self._in_vectors(around) else None
        step = abs(hint(stmt.index.coefficient(vector))) if vector else 0
        moving = isinstance(stmt, Take) and vector in self.values[stmt.by]
        beside = stmt in self.spans.beside
        kind = "gather" if moving else "strided" if step > 1 and not beside else "load"
        vectors = 1  # moved for one
        if kind == "strided" and type(stmt) is Load and is_spaced(step, self.nest.schedule.vector):
            kind, vectors = "load", step
        dtype = buffer.dtype if kind == "load" else DType.F32
        self._arithmetic(kind, dtype, around, times * vectors)
        if kind == "strided":
            self.strided_ns = (self.machine.cost("strided") - self.machine.cost("load")) * times
        elif beside:
            self.strided_ns = SHUFFLE * self.machine.cost("cheap") * times * shuffles(step)
            self.work_ns += self.strided_ns
        if buffer.dtype.is_narrow:
            self._arithmetic("cheap", DType.F32, around, times)
        if stmt in self.spans.carried:
            return
        span = self.spans.span(stmt)
        self._short_rows(stmt, around, times, buffer.dtype.itemsize, span)
        if step > 1 and vector is not None and not beside:
            self._lines(stmt, vector, step, times, buffer.dtype.itemsize, span)
        before = self.seen.get(stmt.buffer)
        self.seen[stmt.buffer] = (self.phase, around)
        if before is None or isinstance(stmt, Store):
            self.nbytes[stmt.buffer] = max(self.nbytes.get(stmt.buffer, 0.0), span)
            distinct = max(1.0, span / buffer.dtype.itemsize)
            if times > 1.5 * distinct:
                self._reread(stmt, around, times * buffer.dtype.itemsize - span, span)
        elif before[0] != self.phase:
            self.nbytes[stmt.buffer] = span
        else:
            common = [a for a, b in zip(before[1], around) if a == b]  # noqa: B905
            row = self._row_bytes(stmt, common, buffer.dtype.itemsize)
            if row > self.machine.l2_bytes / 2:
                self.again_ns += span / _rate(self.machine, row * self.threads, self.threads)

    def _reread(self, stmt: Access, around: tuple[Loop, ...], nbytes: float, span: float) -> None:
        """Elements that outer loops read again: from where the loops inside them left them."""
        if span > self.machine.l2_bytes / 2:
            free = [lp for lp in around if stmt.index.coefficient(lp.axis) == 0]
            inner = around[around.index(free[0]) + 1 :] if free else ()
            if any(stmt.index.coefficient(lp.axis) != 0 for lp in inner):
                self.again_ns += nbytes / _rate(self.machine, span * self.threads, self.threads)

    def _lines(
        self, stmt: Access, vector: str, step: int, times: float, itemsize: int, span: float
    ) -> None:
        """Whole lines are moved for single elements, if they are gone before their next use."""
        extent = hint(self.nest.kernel.extent(vector))
        strips = [lp.strip for lp in self.nest.schedule.loops if lp.axis == vector and lp.strip]
        lines = min([extent, *strips])
        if step * itemsize >= LINE and lines > FEW_LINES and not isinstance(stmt, Take):
            waste, held = max(0.0, times * LINE - span), lines * LINE * self.threads
            self.again_ns += waste / _rate(self.machine, held, self.threads)

    def _short_rows(
        self, stmt: Access, around: tuple[Loop, ...], times: float, itemsize: int, span: float
    ) -> None:
        """Rows of a few lines that lie apart: the processor does not foresee the next one."""
        if len(around) < 2 or not self._in_vectors(around) or span <= self.machine.l2_bytes / 2:
            return
        outside, along = (lp.axis for lp in around[-2:])
        extent = hint(self.nest.kernel.extent(along))
        row, step = extent * itemsize, abs(hint(stmt.index.coefficient(outside))) * itemsize
        if stmt.index.coefficient(along) == 1 and row <= SHORT_ROW and step >= row + LINE:
            lines = math.ceil(row / LINE) + (row % LINE != 0) / 2
            lanes = self.nest.schedule.vector
            rows = times / (math.ceil(extent / lanes) * lanes) / self.threads
            self.again_ns += rows * lines * UNFORESEEN_NS

    def _row_bytes(self, stmt: Access, common: list[Loop], itemsize: int) -> float:
        """Bytes of a buffer that the loops inside the common ones run over."""
        tiles = {lp.axis: lp.strip for lp in common if lp.strip}
        fixed = {lp.axis for lp in common if not lp.strip}
        total = float(itemsize)
        for axis in stmt.index.axes:
            if axis not in fixed:
                total *= tiles.get(axis) or hint(self.nest.kernel.extent(axis))
        return total

    def _recomputed(self) -> tuple[float, float, float]:
        """ns of one thread on values that loops around them repeat, the bytes of writing and
        reading those values instead, and the part of all work that is left then.

        Another pass that computes a value again is no repetition: it saves a row in memory.
        """
        kernel, repeated, nbytes, left = self.nest.kernel, 0.0, 0.0, 0.0
        _, runs = iteration_axes(kernel)
        points = {s: math.prod(hint(kernel.extent(a)) for a in runs[s]) for s in kernel.body}
        wanted: dict[str, int] = {}  # how often a value is read at most, if nothing is repeated
        for s, name in ((x, n) for x in kernel.body for n in x.uses):
            wanted[name] = max(wanted.get(name, 0), points[s])
        for s, ran, ns in self.spent:
            once = wanted.get(s.name, 0) if isinstance(s, (Load, Take)) else points[s]
            part = min(1.0, once / max(1.0, ran))
            left += ns * part
            if part < 1 and isinstance(s, (Compute, Uniform)):
                repeated += ns * (1 - part)
                nbytes += 2.0 * points[s] * s.dtype.itemsize
        return repeated, nbytes, left / max(1e-9, sum(ns for _, _, ns in self.spent))


def _together(work: float, traffic: float) -> float:
    """ns of arithmetic and memory side by side."""
    return max(work, traffic) + OVERLAP * min(work, traffic)
