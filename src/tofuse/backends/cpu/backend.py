"""The CPU as a target: a kernel is a loop nest, its text LLVM IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tofuse.analysis.alias import MemRef
from tofuse.backends.cpu.cost.nest_cost import nest_cost, recompute_rejection
from tofuse.backends.cpu.cost.products import streamed_rows
from tofuse.backends.cpu.gemm import load_product
from tofuse.backends.cpu.llvm.emit import emit, phase_functions
from tofuse.backends.cpu.runtime.cpu_timing import interleaved_us
from tofuse.backends.cpu.runtime.kernel_code import kernel_code
from tofuse.backends.cpu.runtime.launch import Launcher
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
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
from tofuse.cost.kernel_cost import Evaluation
from tofuse.cost.machine import Machine
from tofuse.cost.target_costs import TargetCosts
from tofuse.cost.thresholds import (
    MAX_COLUMN_WEIGHT_ROWS,
    MAX_DECODED_PRODUCT_ROWS,
    MAX_GROUPED_WORKSPACE,
    MAX_OPERANDS,
    MAX_SCHEDULES,
    SPLIT_THRESHOLD,
    TIMING_S,
)
from tofuse.errors import CompileError
from tofuse.ir.dims import Dim, size_hint, symbol
from tofuse.ir.executor import KERNELS
from tofuse.ir.graph import Graph, Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.launch_facts import LaunchFacts
from tofuse.ir.nest import Nest
from tofuse.ir.plan import Plan
from tofuse.ir.region import Region
from tofuse.ir.rules import Reason, Rule
from tofuse.ir.schedule import Schedule, ScheduledKernel, Target
from tofuse.schedule.alias_legality import legal_aliases
from tofuse.schedule.kernel_dedup import DedupedKernel, kernel_dedup
from tofuse.schedule.schedule_legality import Unschedulable

KernelPass = Callable[[Kernel, Target], Kernel]
NestPass = Callable[[Nest], Nest]


@dataclass(frozen=True, eq=False)
class EvaluatedKernel:
    """A kernel after the passes, with the schedule of the heuristics, and its nest if any."""

    kernel: Kernel
    schedule: Schedule
    evaluation: Evaluation
    nest: Nest | None = None


@dataclass(frozen=True, eq=False)
class CpuBackend:
    """The processor `target`, whose costs for decisions are those of `machine`.

    `kernel_passes` run before a kernel is scheduled, `nest_passes` over its nest.

    Schedules each kernel once: code generation takes the same nests.
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
            max_concat_operands=MAX_OPERANDS,
            eliminates_concats=True,
            splits_reductions=True,
            merges_equal_loops=True,
            max_contracted_rows=MAX_DECODED_PRODUCT_ROWS,
            max_contracted_rows_by_columns=MAX_COLUMN_WEIGHT_ROWS,
            streamed_rows=streamed_rows(self.target),
            split_threshold=SPLIT_THRESHOLD,
            separate_rule=Rule.SHORT_ROWS,
        )

    def call_machine(self, measured: Machine) -> Machine:
        return measured

    def evaluate(self, kernel: Kernel) -> Evaluation:
        return self.evaluated_kernel(kernel).evaluation

    def evaluated_kernel(self, kernel: Kernel) -> EvaluatedKernel:
        """Return a kernel with the schedule that the heuristics choose."""
        if kernel not in self.evaluated:
            changed = kernel
            for kernel_pass in self.kernel_passes:
                changed = kernel_pass(changed, self.target)
            schedule, nest = choose_schedule(changed, self.target), None
            try:
                nest = build_nest(changed, schedule)
                cost = nest_cost(nest, self.machine)
                rejection = recompute_rejection(cost)
                evaluation = Evaluation(rejection, cost if rejection is None else None)
            except Unschedulable as e:
                evaluation = Evaluation(e.reason)
            self.evaluated[kernel] = EvaluatedKernel(changed, schedule, evaluation, nest)
        return self.evaluated[kernel]

    def schedule(self, requests: Sequence[KernelRequest]) -> list[KernelCall | Reason]:
        known = [self.evaluated_kernel(r.kernel) for r in requests]
        finished = [r.finish(k.kernel) for r, k in zip(requests, known, strict=True)]
        schedules = [_schedule_of(r, k) for r, k in zip(requests, known, strict=True)]
        shared = kernel_dedup(list(zip(finished, schedules, strict=True)))
        built: dict[Kernel, Nest | Reason] = {}
        for x, own, k in zip(shared, finished, known, strict=True):
            if x.kernel not in built:
                built[x.kernel] = _build(x, own, k, self.nest_passes)
        nests = [built[x.kernel] for x in shared]
        return [
            nest if isinstance(nest, Reason) else KernelCall(nest, x.sizes)
            for nest, x in zip(nests, shared, strict=True)
        ]

    def emit(self, scheduled: ScheduledKernel, exact: bool) -> str:
        target = self.target
        return emit(
            _nest(scheduled),
            contract=not exact,
            avx512=target.avx512,
            native=target.native_lanes,
            saturating_casts=target.saturating_casts,
        )

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
            nest = _nest(scheduled)
            phases = phase_functions(nest)
            names = ["kernel", *(f"kernel.{n}" for n, _ in phases)]
            try:
                module = library.load_text(text, names, store)
            except CompileError as e:
                loaded[text] = e
                continue
            code = kernel_code(nest.kernel, module.digest, phases, nest.block_bytes)
            entry, *parts = module.functions
            loaded[text] = Launcher(code, entry, parts)
        return [loaded[text] for text in texts]

    def launch_facts(self, call: KernelCall) -> LaunchFacts:
        nest = _nest(call.scheduled)
        launch_alone = size_hint(nest.block_bytes) > MAX_GROUPED_WORKSPACE
        written = None if launch_alone else tuple(b.role != "in" for b in nest.kernel.buffers)
        return LaunchFacts(written, legal_aliases(nest))

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
            return nest_cost(_nest(call.scheduled), machine).us
        return traffic_us(machine, size_hint(nbytes)) + machine.launch_us

    def timing_obstacle(self) -> str | None:
        return None

    def timing_key(self) -> tuple[str, ...]:
        return (repr(self.target),)

    def variants(self, scheduled: ScheduledKernel, machine: Machine) -> list[ChosenSchedule]:
        nest = _nest(scheduled)
        nests = schedule_variants(nest.kernel, nest.schedule)
        cheapest = sorted(nests, key=lambda n: nest_cost(n, machine).us)[:MAX_SCHEDULES]
        return [n.schedule for n in cheapest]

    def prune(
        self, default: EmittedKernel, variants: Sequence[EmittedKernel], threads: int
    ) -> list[EmittedKernel]:
        return list(variants)

    def time_calls(self, calls: Sequence[TimedCall]) -> list[float]:
        return interleaved_us(calls, TIMING_S)


def _schedule_of(request: KernelRequest, known: EvaluatedKernel) -> Schedule:
    chosen = request.schedule or known.schedule
    assert isinstance(chosen, Schedule)
    return chosen


def _build(
    shared: DedupedKernel, own: Kernel, known: EvaluatedKernel, passes: Sequence[NestPass]
) -> Nest | Reason:
    """Return the nest of a kernel that may be shared: the one that was evaluated, if it fits."""
    nest = None
    if shared.kernel is own and own.body is known.kernel.body and known.nest is not None:
        nest = replace(known.nest, kernel=own) if shared.schedule == known.schedule else None
    try:
        nest = nest or build_nest(shared.kernel, shared.schedule, repeat_reductions=True)
    except Unschedulable as e:
        return e.reason
    for nest_pass in passes:
        nest = nest_pass(nest)
    return nest


def _nest(scheduled: ScheduledKernel) -> Nest:
    assert isinstance(scheduled, Nest)
    return scheduled


def _anonymous_text(emitted: EmittedKernel) -> str:
    """Return the text of a kernel without its name, so that equal kernels have one text."""
    return emitted.text.replace(f"@{emitted.scheduled.kernel.name}", "@kernel")
