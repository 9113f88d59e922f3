"""The CPU as a target: a kernel is a loop nest, its text LLVM IR."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Union

from tofuse.analysis.alias import MemRef
from tofuse.backends.cpu.cost.blocked_cost import blocked_cost
from tofuse.backends.cpu.cost.chain_cost import chain_cost, chain_rejection
from tofuse.backends.cpu.cost.nest_cost import nest_cost, recompute_rejection
from tofuse.backends.cpu.cost.products import (
    blocked_dtypes,
    blocked_rows,
    streamed_rows,
    tiled_rows,
)
from tofuse.backends.cpu.gemm import load_product
from tofuse.backends.cpu.llvm.emit import EmitOptions, phase_functions
from tofuse.backends.cpu.llvm.emit import emit as emit_nest
from tofuse.backends.cpu.llvm.matmul.blocked_kernel import emit_blocked
from tofuse.backends.cpu.llvm.matmul.chain_kernel import emit_chain
from tofuse.backends.cpu.runtime.cpu_timing import interleaved_us
from tofuse.backends.cpu.runtime.kernel_code import kernel_code
from tofuse.backends.cpu.runtime.launch import Launcher
from tofuse.backends.cpu.schedule.block_sizes import block_variants, blocked_schedules
from tofuse.backends.cpu.schedule.blocked_contraction import build_blocked
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.chain_stages import build_chain, chain_schedule
from tofuse.backends.cpu.schedule.choose_schedule import candidate_schedules, choose_schedule
from tofuse.backends.cpu.schedule.row_accesses import row_accesses
from tofuse.backends.cpu.schedule.schedule_variants import schedule_variants
from tofuse.backends.launcher import KernelLauncher, TimedCall
from tofuse.backends.target import (
    ChosenSchedule,
    EmittedKernel,
    GroupedCalls,
    KernelCall,
    KernelRequest,
    LaunchGroup,
    Linking,
    LoadedProduct,
    Recorder,
)
from tofuse.cost.bandwidth import traffic_us
from tofuse.cost.kernel_cost import Cost, Evaluation
from tofuse.cost.machine import Machine
from tofuse.cost.target_costs import TargetCosts
from tofuse.cost.thresholds import (
    CPU_CANDIDATE_TIMING_S,
    MAX_CHAINED_FACTOR_FLOAT32_BYTES,
    MAX_COLUMN_WEIGHT_ROWS,
    MAX_CPU_CONCAT_OPERANDS,
    MAX_DECODED_PRODUCT_ROWS,
    MAX_GROUPED_WORKSPACE,
    MAX_TIME_SHARE_OF_OTHER_VECTOR_AXIS,
    MAX_TUNED_SCHEDULES,
    SEPARATE_KERNELS_TIME_SHARE,
)
from tofuse.errors import CompileError
from tofuse.ir.blocked import BlockedContraction
from tofuse.ir.dims import Dim, size_hint, symbol
from tofuse.ir.executor import KERNELS
from tofuse.ir.graph import Graph, Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.launch_facts import LaunchFacts, TileableKernel
from tofuse.ir.nest import Nest
from tofuse.ir.plan import Plan
from tofuse.ir.product_chain import ProductChain
from tofuse.ir.region import Region
from tofuse.ir.rules import Reason, Rule
from tofuse.ir.schedule import BlockedSchedule, ChainSchedule, Schedule, ScheduledKernel, Target
from tofuse.schedule.alias_legality import legal_aliases
from tofuse.schedule.kernel_dedup import AnySchedule, DedupedKernel, kernel_dedup
from tofuse.schedule.schedule_legality import Unschedulable

KernelPass = Callable[[Kernel, Target], Kernel]
NestPass = Callable[[Nest], Nest]
CpuKernel = Union[Nest, BlockedContraction, ProductChain]  # noqa: UP007


@dataclass(frozen=True, eq=False)
class EvaluatedKernel:
    """A kernel after the passes, with the schedule of the heuristics, and its loops if any."""

    kernel: Kernel
    schedule: AnySchedule
    evaluation: Evaluation
    scheduled: CpuKernel | None = None


@dataclass(frozen=True, eq=False)
class CpuBackend:
    """The processor `target`, whose costs for decisions are those of `machine`.

    `kernel_passes` run before a kernel is scheduled, `nest_passes` over its nest, but not over the
    nests of blocks. Each kernel is scheduled once: code generation takes the same nests.
    """

    target: Target
    machine: Machine
    kernel_passes: Sequence[KernelPass]
    nest_passes: Sequence[NestPass]
    evaluated: dict[Kernel, EvaluatedKernel] = field(default_factory=dict)

    executor = KERNELS
    contracts_products = False

    @cached_property
    def costs(self) -> TargetCosts:
        return TargetCosts(
            self.machine,
            max_concat_operands=MAX_CPU_CONCAT_OPERANDS,
            eliminates_concats=True,
            splits_reductions=True,
            merges_equal_loops=True,
            max_contracted_rows=MAX_DECODED_PRODUCT_ROWS,
            max_contracted_rows_by_columns=MAX_COLUMN_WEIGHT_ROWS,
            tiled_rows=tiled_rows(self.target),
            blocked_dtypes=blocked_dtypes(self.target),
            blocked_rows=blocked_rows(self.target),
            streamed_rows=streamed_rows(self.target),
            max_chained_bytes=MAX_CHAINED_FACTOR_FLOAT32_BYTES,
            split_threshold=SEPARATE_KERNELS_TIME_SHARE,
            separate_rule=Rule.SHORT_ROWS,
        )

    def call_machine(self, measured: Machine) -> Machine:
        return measured

    def evaluate(self, kernel: Kernel) -> Evaluation:
        return self.evaluated_kernel(kernel).evaluation

    def evaluated_kernel(self, kernel: Kernel) -> EvaluatedKernel:
        """Return a kernel with the schedule that the heuristics choose."""
        if kernel not in self.evaluated:
            self.evaluated[kernel] = self._fastest(kernel)
        return self.evaluated[kernel]

    def _fastest(self, kernel: Kernel) -> EvaluatedKernel:
        """Return a kernel as one nest, by blocks or as a chain, whichever is predicted fastest."""
        nest, scheduled = self._evaluated_nest(kernel), self.blocks(kernel) or self.chain(kernel)
        if scheduled is None or (cost := _cost(scheduled, self.machine)).us >= _us(nest):
            return nest
        rejection = chain_rejection(cost) if isinstance(scheduled, ProductChain) else None
        evaluation = Evaluation(rejection, cost if rejection is None else None)
        return EvaluatedKernel(kernel, scheduled.schedule, evaluation, scheduled)

    def _evaluated_nest(self, kernel: Kernel) -> EvaluatedKernel:
        """Return a kernel as one nest: by the first of its schedules, or by a much faster one."""
        for kernel_pass in self.kernel_passes:
            kernel = kernel_pass(kernel, self.target)
        schedules = candidate_schedules(kernel, self.target)
        first, *others = (self._evaluated_schedule(kernel, s) for s in schedules)
        fastest = min(others, key=_us, default=first)
        return fastest if _us(fastest) < MAX_TIME_SHARE_OF_OTHER_VECTOR_AXIS * _us(first) else first

    def _evaluated_schedule(self, kernel: Kernel, schedule: Schedule) -> EvaluatedKernel:
        nest = None
        try:
            nest = build_nest(kernel, schedule)
            cost = nest_cost(nest, self.machine)
            rejection = recompute_rejection(cost)
            evaluation = Evaluation(rejection, cost if rejection is None else None)
        except Unschedulable as e:
            evaluation = Evaluation(e.reason)
        return EvaluatedKernel(kernel, schedule, evaluation, nest)

    def blocks(self, kernel: Kernel) -> BlockedContraction | None:
        """Return the fastest blocks of a kernel of products, None if it does not run by blocks."""
        found = self.built_blocks(kernel, blocked_schedules(kernel, self.target))
        return min(found, key=lambda b: blocked_cost(b, self.machine).us, default=None)

    def chain(self, kernel: Kernel) -> ProductChain | None:
        """Return the stages of a kernel of chained products, None if it has none."""
        schedule = chain_schedule(kernel, self.target)
        if schedule is None:
            return None
        with suppress(Unschedulable):
            return build_chain(kernel, schedule, self._block_nest)
        return None

    def built_blocks(
        self, kernel: Kernel, schedules: Sequence[BlockedSchedule]
    ) -> list[BlockedContraction]:
        """Return the blocks of a kernel for each schedule whose parts have nests."""
        found: list[BlockedContraction] = []
        for schedule in schedules:
            with suppress(Unschedulable):
                found.append(build_blocked(kernel, schedule, self._block_nest))
        return found

    def _block_nest(self, kernel: Kernel) -> Nest:
        """Return the nest of a block, which one thread runs."""
        target = replace(self.target, threads=1)
        for kernel_pass in self.kernel_passes:
            kernel = kernel_pass(kernel, target)
        return build_nest(kernel, choose_schedule(kernel, target))

    def schedule(self, requests: Sequence[KernelRequest]) -> list[KernelCall | Reason]:
        known = [self.evaluated_kernel(r.kernel) for r in requests]
        finished = [r.finish(k.kernel) for r, k in zip(requests, known, strict=True)]
        schedules = [_schedule_of(r, k) for r, k in zip(requests, known, strict=True)]
        shared = kernel_dedup(list(zip(finished, schedules, strict=True)))
        built: dict[Kernel, CpuKernel | Reason] = {}
        for x, own, k in zip(shared, finished, known, strict=True):
            if x.kernel not in built:
                built[x.kernel] = self._build(x, own, k)
        nests = [built[x.kernel] for x in shared]
        return [
            nest if isinstance(nest, Reason) else KernelCall(nest, x.sizes)
            for nest, x in zip(nests, shared, strict=True)
        ]

    def _build(
        self, shared: DedupedKernel, own: Kernel, known: EvaluatedKernel
    ) -> CpuKernel | Reason:
        """Return a kernel that may be shared with its loops: those evaluated, if they fit."""
        kernel, schedule = shared.kernel, shared.schedule
        try:
            if isinstance(schedule, BlockedSchedule):
                return build_blocked(kernel, schedule, self._block_nest)
            if isinstance(schedule, ChainSchedule):
                return build_chain(kernel, schedule, self._block_nest)
            nest = None
            if kernel is own and own.body is known.kernel.body and schedule == known.schedule:
                nest = known.scheduled
            if not isinstance(nest, Nest):
                nest = build_nest(kernel, schedule, repeat_reductions=True)
        except Unschedulable as e:
            return e.reason
        nest = replace(nest, kernel=kernel)
        for nest_pass in self.nest_passes:
            nest = nest_pass(nest)
        return nest

    def emit(self, scheduled: ScheduledKernel, exact: bool) -> str:
        target, kernel = self.target, _cpu_kernel(scheduled)
        options = EmitOptions(
            contract=not exact,
            avx512=target.avx512,
            native=target.native_lanes,
            saturating_casts=target.saturating_casts,
        )
        if isinstance(kernel, BlockedContraction):
            return emit_blocked(kernel, options)
        if isinstance(kernel, ProductChain):
            return emit_chain(kernel, options)
        return emit_nest(kernel, options)

    def load(
        self, emitted: Sequence[EmittedKernel], linking: Linking
    ) -> list[KernelLauncher | CompileError]:
        library, store = linking.library, linking.store
        texts = list(map(_anonymous_text, emitted))
        library.compile(list(dict.fromkeys(texts)), store, linking.threads)
        loaded: dict[str, Launcher | CompileError] = {}
        for text, (scheduled, _) in zip(texts, emitted, strict=True):
            if text in loaded:
                continue
            kernel = _cpu_kernel(scheduled)
            phases = _phase_functions(kernel)
            names = ["kernel", *(f"kernel.{n}" for n, _ in phases)]
            try:
                module = library.load_text(text, names, store)
            except CompileError as e:
                loaded[text] = e
                continue
            code = kernel_code(kernel.kernel, module.digest, phases, kernel.block_bytes)
            entry, *parts = module.functions
            loaded[text] = Launcher(code, entry, parts)
        return [loaded[text] for text in texts]

    def launch_facts(self, call: KernelCall) -> LaunchFacts:
        kernel = _cpu_kernel(call.scheduled)
        launch_alone = size_hint(kernel.block_bytes) > MAX_GROUPED_WORKSPACE
        written = None if launch_alone else tuple(b.role != "in" for b in kernel.kernel.buffers)
        # factors are read again after results of other blocks are written
        aliases = legal_aliases(kernel) if isinstance(kernel, Nest) else ()
        return LaunchFacts(written, aliases, tileable=partial(self._tileable, kernel))

    def _tileable(self, kernel: CpuKernel) -> TileableKernel | None:
        rows = row_accesses(kernel) if isinstance(kernel, Nest) else None
        if rows is None:
            return None
        roles = enumerate(b.role for b in kernel.kernel.buffers)
        nontemporal = frozenset(k for k, role in roles if role == "nontemporal")
        cost = _cost(kernel, self.machine)
        times = cost.us, cost.work_us, cost.traffic_us
        return TileableKernel(rows, *times, cost.nbytes, nontemporal)

    def load_groups(
        self, groups: Mapping[int, GroupedCalls], exact: bool, threads: int
    ) -> dict[int, LaunchGroup]:
        return {}  # one parallel region runs any kernels: the runtime needs no code for a group

    def recorder(self, graph: Graph, plan: Plan) -> Recorder | None:
        return None

    def load_product(
        self, region: Region, storage: Mapping[Value, MemRef], machine: Machine, linking: Linking
    ) -> LoadedProduct | str | None:
        return load_product(region, storage, self.target, machine, linking)

    def predicted_us(self, call: KernelCall, nbytes: Dim, machine: Machine) -> float:
        """Return the predicted time; of a kernel for several sizes, from the bytes alone."""
        if call.sizes == tuple(map(symbol, call.scheduled.kernel.symbols)):
            return _cost(_cpu_kernel(call.scheduled), machine).us
        return traffic_us(machine, size_hint(nbytes)) + machine.launch_us

    def timing_obstacle(self) -> str | None:
        return None

    def timing_key(self) -> tuple[str, ...]:
        return (repr(self.target),)

    def variants(self, scheduled: ScheduledKernel, machine: Machine) -> list[ChosenSchedule]:
        chosen, found = _cpu_kernel(scheduled), list[CpuKernel]()
        if isinstance(chosen, Nest):
            found += schedule_variants(chosen.kernel, chosen.schedule)
        elif isinstance(chosen, BlockedContraction):
            variants = block_variants(chosen.kernel, chosen.schedule, self.target)
            found += self.built_blocks(chosen.kernel, variants)
        cheapest = sorted(found, key=lambda k: _cost(k, machine).us)[:MAX_TUNED_SCHEDULES]
        return [k.schedule for k in cheapest]

    def prune(
        self, default: EmittedKernel, variants: Sequence[EmittedKernel], threads: int
    ) -> list[EmittedKernel]:
        return list(variants)

    def time_calls(self, calls: Sequence[TimedCall]) -> list[float]:
        return interleaved_us(calls, CPU_CANDIDATE_TIMING_S)


def _schedule_of(request: KernelRequest, known: EvaluatedKernel) -> AnySchedule:
    chosen = request.schedule or known.schedule
    assert isinstance(chosen, (Schedule, BlockedSchedule, ChainSchedule))
    return chosen


def _us(evaluated: EvaluatedKernel) -> float:
    """Return the predicted time of a kernel; infinite if it has no loops."""
    cost = evaluated.evaluation.cost
    return math.inf if cost is None else cost.us


def _cpu_kernel(scheduled: ScheduledKernel) -> CpuKernel:
    assert isinstance(scheduled, (Nest, BlockedContraction, ProductChain))
    return scheduled


def _cost(kernel: CpuKernel, machine: Machine) -> Cost:
    if isinstance(kernel, BlockedContraction):
        return blocked_cost(kernel, machine)
    if isinstance(kernel, ProductChain):
        return chain_cost(kernel, machine)
    return nest_cost(kernel, machine)


def _phase_functions(kernel: CpuKernel) -> list[tuple[str, bool]]:
    """Return the functions that the entry runs in order, and whether threads share each one."""
    return phase_functions(kernel) if isinstance(kernel, Nest) else [("slice0", True)]


def _anonymous_text(emitted: EmittedKernel) -> str:
    """Return the text of a kernel without its name, so that equal kernels have one text."""
    return emitted.text.replace(f"@{emitted.scheduled.kernel.name}", "@kernel")
