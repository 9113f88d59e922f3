"""Cost model of loop nests: arithmetic by op class, bytes by memory level, threads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tofuse.analysis.footprint import Access, Footprint
from tofuse.backends.cpu.cost.guard_coverage import statement_coverage
from tofuse.backends.cpu.cost.recomputation import (
    recomputation_by_loops,
    recomputation_by_shifts,
    recomputation_of_sums,
)
from tofuse.backends.cpu.cost.threads import threads_worth
from tofuse.cost.bandwidth import bandwidth
from tofuse.cost.kernel_cost import Cost, overlapped, recomputation_reason
from tofuse.cost.machine import CACHE_LINE, L1_LINES, Machine
from tofuse.cost.thresholds import SHORT_ROW_BYTES
from tofuse.cost.work import OP_CLASSES, kernel_work
from tofuse.ir.dims import product, size_hint
from tofuse.ir.interleave import is_vectorizable_stride, shuffle_count
from tofuse.ir.kernel import (
    Compute,
    Gather,
    Load,
    Next,
    Previous,
    Reduce,
    Scan,
    Scatter,
    Stmt,
    Store,
    Uniform,
    iteration_axes,
)
from tofuse.ir.nest import (
    For,
    Nest,
    Node,
    Phase,
    Reload,
    StmtNode,
)
from tofuse.ir.rules import Reason
from tofuse.ir.schedule import Loop
from tofuse.ir.types import DType

Loops = tuple[Loop, ...]  # outermost first

# Fitted to the measured and predicted kernels of docs/measurements.md.
REJECTION_MARGIN = 2.5  # factor over the separate kernels, whose cost is a lower bound
UNPREFETCHED_LINE_NS = 1.5
BOOLEAN_SHARE = 0.5  # of the time of a uniform number: "Dropout"
SHUFFLE_COST = 2  # cheap ops per shuffle of a vector


def nest_cost(nest: Nest, machine: Machine) -> Cost:
    """Return the cost of a scheduled kernel, with size hints for symbols."""
    return _Estimate(nest, machine).run()


def recompute_rejection(cost: Cost) -> Reason | None:
    """Return why a kernel is rejected for recomputation; None if it is accepted.

    A kernel recomputes values in loops that they do not depend on. It is rejected if it is
    predicted to be slower than two separate kernels by more than a factor of REJECTION_MARGIN.
    """
    if not cost.recomputed_adds or cost.us <= REJECTION_MARGIN * cost.separate_us:
        return None
    return recomputation_reason(cost, cost.separate_us)


@dataclass(eq=False)
class _Estimate:
    """Accumulators of the estimate of one nest; most are reset for each phase."""

    nest: Nest
    machine: Machine
    threads: int = 1  # of the current phase
    work_ns: float = 0.0  # of all work on one thread
    vectorized_ns: float = 0.0  # the part of it that contiguous accesses in full vectors would take
    strided_ns: float = 0.0  # the rest of the current access
    nbytes: dict[str, float] = field(default_factory=dict)  # first transfers, by buffer
    reread_ns: float = 0.0  # traffic of repeated transfers
    last_access: dict[str, tuple[int, Loops]] = field(default_factory=dict)
    statement_ns: list[tuple[Stmt, float, float]] = field(default_factory=list)  # stmt, points, ns
    values: Mapping[str, frozenset[str]] = field(default_factory=dict)  # axes of each value
    domains: Mapping[Stmt, frozenset[str]] = field(default_factory=dict)  # of each statement
    phase: int = 0
    coverage: dict[Stmt, float] = field(default_factory=dict)  # see `statement_coverage`

    def __post_init__(self) -> None:
        schedule = self.nest.schedule
        self.vector_axes = [lp.axis for lp in schedule.loops[-1:] if schedule.vector > 1]
        self.footprint = Footprint(self.nest.kernel, *self.vector_axes)

    def run(self) -> Cost:
        kernel, schedule, machine = self.nest.kernel, self.nest.schedule, self.machine
        self.values, self.domains = iteration_axes(kernel)
        strips = {lp.axis for lp in schedule.loops if lp.strip}
        around = [lp.axis for lp in schedule.loops[:-1] if lp.axis not in strips]
        self.coverage = statement_coverage(kernel, (*self.vector_axes, *around))
        points = size_hint(product(a.extent for a in kernel.axes))
        max_threads = min(machine.threads, threads_worth(points, kernel_work(kernel)))
        total = vectorized = machine.launch_us * 1e3
        work, traffic, widest = 0.0, 0.0, 1
        buffer_bytes = self.footprint.buffer_bytes()
        footprint = sum(buffer_bytes.values())
        nontemporal = frozenset(b.name for b in kernel.buffers if b.role == "nontemporal")
        cached = sum(n for name, n in buffer_bytes.items() if name not in nontemporal)
        for k, phase in enumerate(self.nest.phases):
            self.phase, self.nbytes = k, {}
            self.work_ns = self.vectorized_ns = self.reread_ns = 0.0
            trips = math.prod(self._trip_count(lp, phase.band) for lp in phase.band)
            self.threads = max(1, min(max_threads, trips)) if phase.band else 1
            imbalance = math.ceil(trips / self.threads) * self.threads / max(1, trips)
            widest = max(widest, self.threads)
            self._phase(phase, trips)
            phase_work = self.work_ns * imbalance / self.threads
            phase_traffic = self._first_transfer_ns(nontemporal, cached)
            vectorized += overlapped(self.vectorized_ns * imbalance / self.threads, phase_traffic)
            phase_traffic += self.reread_ns
            total += overlapped(phase_work, phase_traffic)
            work, traffic = work + phase_work, traffic + phase_traffic
        if widest > 1:
            barriers = machine.parallel_us * 1e3 * (0.5 + 0.5 * len(self.nest.phases))
            total, vectorized = total + barriers, vectorized + barriers
        by_loops = recomputation_by_loops(kernel, self.statement_ns)
        of_sums = recomputation_of_sums(kernel, self.statement_ns)
        by_shifts = recomputation_by_shifts(kernel, self.statement_ns)
        separate, separate_sums, separate_shifts = (
            machine.launch_us * 2e3
            + overlapped(work - work * (1 - r.needed), traffic)
            + r.nbytes / bandwidth(machine, r.nbytes, widest)
            for r in (by_loops, of_sums, by_shifts)
        )
        least = vectorized
        if of_sums.repeated_ns:
            separate, least = min(separate, separate_sums), min(vectorized, separate_sums)
        if by_shifts.repeated_ns:
            separate = min(separate, separate_shifts)
            least = min(least, overlapped(work * by_shifts.needed, traffic))
        repeated = by_loops.repeated_ns + of_sums.repeated_ns + by_shifts.repeated_ns
        adds = repeated / machine.ns["cheap"]
        us, work, traffic, separate, least = (
            ns / 1e3 for ns in (total, work, traffic, separate, least)
        )
        return Cost(us, work, traffic, int(footprint), widest, adds, separate, least)

    def _first_transfer_ns(self, nontemporal: frozenset[str], cached: float) -> float:
        """Return the ns of one transfer of each byte. Nontemporal stores use no cache capacity."""
        bypassing = sum(n for name, n in self.nbytes.items() if name in nontemporal)
        rest = sum(self.nbytes.values()) - bypassing
        machine = self.machine
        to_memory = min(machine.core_rate * self.threads, machine.memory_rate)
        return bypassing / to_memory + rest / bandwidth(machine, cached, self.threads)

    def _phase(self, phase: Phase, trips: int) -> None:
        self._nodes(phase.prologue, (), 1.0, 1.0)
        self._nodes(phase.body, phase.band, float(trips), float(trips))
        for p in phase.partials:
            elements = 1 if p.array is None else size_hint(p.array.elements)
            per = self.machine.ns["load"] * 2 + self.machine.ns["cheap"]
            self.work_ns += self.threads * (elements * per * self.threads + self.machine.fold_ns)

    def _nodes(self, nodes: tuple[Node, ...], around: Loops, times: float, points: float) -> None:
        """Add the cost of nodes inside the loops `around`.

        They run for `points` iteration points; `times` also counts the idle lanes of last vectors.
        """
        for node in nodes:
            match node:
                case StmtNode():
                    shared = self._iterations_sharing(node.stmt, around)
                    self._statement_node(node.stmt, around, times / shared, points / shared)
                case Reload():
                    self._arithmetic("load", node.scratch.dtype, around, times)
                case For():
                    self._loop(node, around, times, points)

    def _statement_node(self, stmt: Stmt, around: Loops, times: float, points: float) -> None:
        """Add the cost of a statement; see `_nodes`."""
        before, self.strided_ns = self.work_ns, 0.0
        self._statement(stmt, around, times * self.coverage.get(stmt, 1.0))
        stmt_ns = self.work_ns - before
        self.statement_ns.append((stmt, points, stmt_ns))
        lanes = times * (1 if self._is_vectorized(around) else self.machine.lanes)
        self.vectorized_ns += (stmt_ns - self.strided_ns) * points / max(1.0, lanes)

    def _iterations_sharing(self, stmt: Stmt, around: Loops) -> int:
        """Return how many iterations of loops with `jam` share one run of a statement."""
        return self._jammed(around, self.domains[stmt])

    def _jammed(self, around: Loops, own: frozenset[str] = frozenset()) -> int:
        """Return how many iterations of loops over other axes than `own` run at the same time."""
        loops = (lp for lp in around if lp.jam > 1 and lp.axis not in own)
        return math.prod(min(lp.jam, max(1, self._trip_count(lp, around))) for lp in loops)

    def _loop(self, node: For, around: Loops, times: float, points: float) -> None:
        machine = self.machine
        trips = self._trip_count(node.loop, around)
        vectors = node.loop == self.nest.schedule.loops[-1] and self.nest.schedule.vector > 1
        reductions = sum(a.array is None for a in node.reductions) if vectors else 0
        rows = times / self._jammed(around)
        self.work_ns += rows * machine.row_ns + times * machine.fold_ns * reductions
        lanes = self.nest.schedule.vector if vectors else 1
        padded = math.ceil(trips / lanes) * lanes
        self._nodes(node.body, (*around, node.loop), times * padded, points * trips)

    def _trip_count(self, loop: Loop, around: Loops) -> int:
        """Return the trip count of a loop inside the loops `around`."""
        extent = size_hint(self.nest.kernel.extent(loop.axis))
        if loop.strip:
            return -(-extent // loop.strip)
        tile = next((lp.strip for lp in around if lp.axis == loop.axis and lp.strip), 0)
        return min(extent, tile) if tile else extent

    # -- statements ------------------------------------------------------------------------------

    def _statement(self, stmt: Stmt, around: Loops, times: float) -> None:
        match stmt:
            case Load() | Store() | Gather():
                self._access(stmt, around, times)
            case Reduce():
                if self._accumulates_in_array(stmt):
                    self._arithmetic("load", stmt.dtype, around, 2 * times)
                factor = 3 if stmt.position is not None else 1
                self._arithmetic("cheap", stmt.dtype, around, factor * times)
            case Scatter():
                self._scatter(stmt, around, times)
            case Scan():
                self._scan(stmt, around, times)
            case Previous() | Next():  # a load or a store of the carry
                self._arithmetic("load", stmt.dtype, around, times)
            case Compute():
                wide = max(stmt.dtype.itemsize, stmt.operand_dtype.itemsize) == 8
                dtype = DType.F64 if wide else DType.F32
                self._arithmetic(OP_CLASSES.get(stmt.op, "cheap"), dtype, around, times)
            case Uniform():
                share = 1.0 if stmt.below is None else BOOLEAN_SHARE
                self._arithmetic("random", DType.F32, around, share * times)
            case _:
                self._arithmetic("cheap", stmt.dtype, around, times)

    def _scatter(self, s: Scatter, around: Loops, times: float) -> None:
        """Add the cost of a scatter: of rows in vectors, or of one element after another."""
        vector = around[-1].axis if self._is_vectorized(around) else None
        by_row = vector is None or vector not in self.values[s.dynamic_index]
        self._arithmetic("load" if by_row else "gather", s.dtype, around, 2 * times)
        rounds = 3 if s.dtype.is_reduced_float else 1
        self._arithmetic("cheap", s.dtype, around, rounds * times)

    def _scan(self, s: Scan, around: Loops, times: float) -> None:
        """Add the cost of a scan: in lanes of a vector, a combination for each doubling."""
        along_lanes = self._is_vectorized(around) and around[-1].axis == s.axis
        combinations = math.log2(self.nest.schedule.vector) + 2 if along_lanes else 1
        if s.op == "logcumsumexp":
            self._arithmetic("exp", s.dtype, around, 2 * combinations * times)
        moves = combinations if along_lanes else 2  # shuffles, or a load and a store of the carry
        self._arithmetic("cheap", s.dtype, around, combinations * times)
        self._arithmetic("load", s.dtype, around, moves * times)

    def _accumulates_in_array(self, r: Reduce) -> bool:
        """Whether a reduction needs an array, because its value depends on axes of inner loops."""
        order = [lp.axis for lp in self.nest.schedule.loops]
        outermost = min(order.index(a) for a in r.over)
        return any(a not in r.over for a in order[outermost:] if a not in order[:outermost])

    def _arithmetic(self, kind: str, dtype: DType, around: Loops, times: float) -> None:
        """Add `times` elements of an op; outside the vector loop, each takes a whole vector."""
        per = self.machine.ns[kind] * (2 if dtype.itemsize == 8 else 1)
        if not self._is_vectorized(around):
            per *= self.machine.lanes if kind not in ("gather", "strided") else 1
        self.work_ns += per * times

    def _is_vectorized(self, around: Loops) -> bool:
        schedule = self.nest.schedule
        return bool(around) and around[-1] == schedule.loops[-1] and schedule.vector > 1

    # -- memory ----------------------------------------------------------------------------------

    def _access(self, stmt: Access, around: Loops, times: float) -> None:
        buffer = next(b for b in self.nest.kernel.buffers if b.name == stmt.buffer)
        vector = around[-1].axis if self._is_vectorized(around) else None
        step = abs(size_hint(stmt.index.coefficient(vector))) if vector else 0
        gathers = isinstance(stmt, Gather) and vector in self.values[stmt.dynamic_index]
        interleaved = stmt in self.footprint.interleaved
        kind = "gather" if gathers else "strided" if step > 1 and not interleaved else "load"
        vectors = 1  # loaded for one vector of elements
        if (
            kind == "strided"
            and type(stmt) is Load
            and is_vectorizable_stride(step, self.nest.schedule.vector)
        ):
            kind, vectors = "load", step
        dtype = buffer.dtype if kind == "load" else DType.F32
        self._arithmetic(kind, dtype, around, times * vectors)
        if kind == "strided":
            self.strided_ns = (self.machine.ns["strided"] - self.machine.ns["load"]) * times
        elif interleaved:
            shuffles = SHUFFLE_COST * self.machine.ns["cheap"] * times
            self.strided_ns = shuffles * shuffle_count(step)
            self.work_ns += self.strided_ns
        if buffer.dtype.is_reduced_float:
            self._arithmetic("cheap", DType.F32, around, times)
        if stmt in self.footprint.counted_by_leader:
            return
        nbytes = self.footprint.access_bytes(stmt)
        self._add_short_rows(stmt, around, times, nbytes)
        if step > 1 and vector is not None and not interleaved:
            self._add_strided_lines(stmt, vector, step, times, nbytes)
        self._add_transfers(stmt, around, times, nbytes)

    def _add_transfers(self, stmt: Access, around: Loops, times: float, nbytes: float) -> None:
        """Add the first transfer of an access's bytes to `nbytes`, later ones to `reread_ns`."""
        before, itemsize = self.last_access.get(stmt.buffer), self.footprint.itemsize[stmt.buffer]
        self.last_access[stmt.buffer] = (self.phase, around)
        if before is None or isinstance(stmt, Store):
            self.nbytes[stmt.buffer] = max(self.nbytes.get(stmt.buffer, 0.0), nbytes)
            distinct = max(1.0, nbytes / itemsize)
            if times > 1.5 * distinct:
                self._add_rereads(stmt, around, times * itemsize - nbytes, nbytes)
        elif before[0] != self.phase:
            self.nbytes[stmt.buffer] = nbytes
        else:
            common = [a for a, b in zip(before[1], around) if a == b]  # noqa: B905
            row = self._row_bytes(stmt, common)
            if row > self.machine.l2_bytes / 2:
                rate = bandwidth(self.machine, row * self.threads, self.threads)
                self.reread_ns += nbytes / rate

    def _add_rereads(self, stmt: Access, around: Loops, reread: float, footprint: float) -> None:
        """Add the transfers of elements that outer loops read again, from the level they are in."""
        if footprint > self.machine.l2_bytes / 2:
            invariant = [lp for lp in around if stmt.index.coefficient(lp.axis) == 0]
            inner = around[around.index(invariant[0]) + 1 :] if invariant else ()
            if any(stmt.index.coefficient(lp.axis) != 0 for lp in inner):
                rate = bandwidth(self.machine, footprint * self.threads, self.threads)
                self.reread_ns += reread / rate

    def _add_strided_lines(
        self, stmt: Access, vector: str, step: int, times: float, nbytes: float
    ) -> None:
        """Add the unused bytes of cache lines that are evicted before their next use."""
        extent = size_hint(self.nest.kernel.extent(vector))
        strips = [lp.strip for lp in self.nest.schedule.loops if lp.axis == vector and lp.strip]
        lines = min([extent, *strips])
        far = step * self.footprint.itemsize[stmt.buffer] >= CACHE_LINE
        if far and lines > L1_LINES and not isinstance(stmt, Gather):
            waste = max(0.0, times * CACHE_LINE - nbytes)
            live = lines * CACHE_LINE * self.threads
            self.reread_ns += waste / bandwidth(self.machine, live, self.threads)

    def _add_short_rows(self, stmt: Access, around: Loops, times: float, nbytes: float) -> None:
        """Add the latency of short separate rows, which the hardware does not prefetch."""
        far = nbytes > self.machine.l2_bytes / 2
        if len(around) < 2 or not self._is_vectorized(around) or not far:
            return
        outer, along = (lp.axis for lp in around[-2:])
        extent = size_hint(self.nest.kernel.extent(along))
        itemsize = self.footprint.itemsize[stmt.buffer]
        row, step = extent * itemsize, abs(size_hint(stmt.index.coefficient(outer))) * itemsize
        if (
            stmt.index.coefficient(along) == 1
            and row <= SHORT_ROW_BYTES
            and step >= row + CACHE_LINE
        ):
            lines = math.ceil(row / CACHE_LINE) + (row % CACHE_LINE != 0) / 2
            lanes = self.nest.schedule.vector
            rows = times / (math.ceil(extent / lanes) * lanes) / self.threads
            self.reread_ns += rows * lines * UNPREFETCHED_LINE_NS

    def _row_bytes(self, stmt: Access, common: list[Loop]) -> float:
        """Return the bytes of a buffer that one iteration of the loops in `common` touches."""
        tiles = {lp.axis: lp.strip for lp in common if lp.strip}
        fixed = {lp.axis for lp in common if not lp.strip}
        total = float(self.footprint.itemsize[stmt.buffer])
        for axis in stmt.index.axes:
            if axis not in fixed:
                total *= tiles.get(axis) or size_hint(self.nest.kernel.extent(axis))
        return total
