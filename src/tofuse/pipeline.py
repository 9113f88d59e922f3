"""The compiler, top to bottom: from a captured graph to a callable and a report."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tofuse.backends.aten.region import executor_runner, graph_runner, region_runner
from tofuse.backends.llvm.emit import emit
from tofuse.backends.llvm.load import bind_threads, host_target, load
from tofuse.capture.claims import Claims, nobody
from tofuse.capture.convert import AtenGraph, Captured, convert
from tofuse.config import Config
from tofuse.errors import CaptureError, CompileError
from tofuse.executors import executors_of
from tofuse.fusion.assign import (
    NO_KERNELS,
    Assignment,
    assign_call,
    assign_fallback,
    assign_kernel,
)
from tofuse.fusion.axes import Misaligned
from tofuse.fusion.coalesce import coalesce
from tofuse.fusion.cost import loss, nest_cost
from tofuse.fusion.lower import lower
from tofuse.fusion.partition import partition
from tofuse.fusion.storage import is_view
from tofuse.fusion.streams import streamed, with_streams
from tofuse.ir.dims import Dim, symbol, symbols_of
from tofuse.ir.executor import KERNELS
from tofuse.ir.graph import Graph, Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.loops import Nest
from tofuse.ir.machine import Machine
from tofuse.ir.parse import parse_graph
from tofuse.ir.region import Partition, Region
from tofuse.ir.region_text import show_partition
from tofuse.ir.schedule import Schedule, Target
from tofuse.ir.show import show_graph
from tofuse.ops.kernel_verify import verify
from tofuse.ops.verify import verify as verify_graph
from tofuse.passes import run_passes
from tofuse.report.model import (
    GraphReport,
    KernelReport,
    LibraryCall,
    RegionReport,
    Span,
    bytes_before,
    region_bytes,
)
from tofuse.report.repro import write_repro
from tofuse.report.stages import Stages
from tofuse.runtime.build import KernelCall, Signature, build_plan
from tofuse.runtime.clock import Clock
from tofuse.runtime.execute import Run, Tensor, load_plan
from tofuse.runtime.launch import Launcher, find_openmp, thread_count
from tofuse.runtime.machines import assumed_machine, measured_machine, store_of
from tofuse.runtime.pool import POOL
from tofuse.schedule.choose import choose_schedule
from tofuse.schedule.nest import Unschedulable, build_nest
from tofuse.schedule.prefetch import with_prefetch
from tofuse.schedule.variants import variants
from tofuse.tuning import ATEN, Choice, Workshop, as_chosen, tune

Keep = Callable[[GraphReport], "Clock | None"]  # may answer with a clock to time the plan's steps


def compile_graph(gm: AtenGraph, phase: str, config: Config, keep: Keep) -> Run:
    """A callable for an ATen graph; PyTorch runs the whole of it where it cannot be captured."""
    try:
        captured = convert(gm, phase, claims_of(config))
    except CaptureError as e:
        keep(GraphReport(phase, notes=(f"the whole graph runs through PyTorch: {e}",)))
        return graph_runner(gm)
    return compile_captured(captured, phase, config, keep)


def compile_captured(captured: Captured, phase: str, config: Config, keep: Keep) -> Run:
    """A callable for a captured program: flat arguments in one list to a list of results."""
    stages = Stages(phase, config.show, config.dump)
    graph = run_passes(captured.graph)
    stages.done("passes")
    stages.text("graph", lambda: show_graph(graph))
    target = host_target(thread_count())
    machine = assumed_machine(target, config)
    part = partition(graph, lambda kernel: misfit(kernel, target, machine), machine)
    stages.done("partition")
    choices = _measured_choices(part, target, config) if config.tune == "measure" else {}
    part, choices = as_chosen(part, choices)
    if choices:
        stages.done("measured choice")
    stages.text("regions", lambda: show_partition(part))
    constants = [t for _, t in captured.constants]
    signature = _signature(captured, part.graph)
    made = _assemble(part, signature, constants, choices, target, config, stages.done)
    stages.text("loops", lambda: "\n".join(f"{b.nest.kernel!r}\n{b.nest!r}" for b in made.built))
    stages.text("source", lambda: "\n".join(b.source for b in made.built))
    stages.text("plan", lambda: made.plan)
    clock = keep(_report(phase, captured.graph, part, made, stages.spans))
    return made.load(clock)


@dataclass(frozen=True, eq=False)
class Assembled:
    """A program that runs: its kernels, who runs each region, its plan, and what went wrong."""

    load: Callable[[Clock | None], Run]  # with a clock, its steps are timed
    built: Sequence[Built]
    assigned: Mapping[Region, Assignment]
    plan: str
    notes: Sequence[str]


def _assemble(
    part: Partition,
    signature: Signature,
    constants: Sequence[Tensor],
    choices: Mapping[Region, Choice],
    target: Target,
    config: Config,
    done: Callable[[str], None] = lambda stage: None,
) -> Assembled:
    """Machine code and a plan for a partition; `done` is told of each stage."""
    streams = streamed(part)
    measured = measured_machine(target, config)
    executors = executors_of(config)
    assigned = {r: assign_call(r, executors, measured) for r in part.regions if r.library}
    built: list[Built] = []
    unfit: dict[Region, str] = {}
    for r in part.regions:
        choice = choices.get(r, Choice())
        if r.library:
            continue
        if choice.kind == ATEN or not executors.kernels:
            unfit[r] = choice.why if choice.kind == ATEN else NO_KERNELS
            continue
        made = _build(r, part, streams, target, config, choice.schedule)
        if isinstance(made, Built):
            built.append(made)
        else:
            unfit[r] = made.reason
    done("lower and emit")
    launchers, calls, notes = _load(built, part, config)
    done("machine code")
    notes += [f"{r.name} runs through PyTorch: {why}" for r, why in unfit.items()]
    users = {r: a for r, a in assigned.items() if a.executor is not None}
    labels = {r: a.label(r.ops[0]) for r, a in users.items()}
    plan = build_plan(part, signature, calls, labels)
    functions: dict[str, Callable[..., object]] = {
        f"region{k}": region_runner(r)
        for k, r in enumerate(part.regions)
        if not r.library and r not in calls
    }
    for r, a in users.items():
        assert a.executor is not None
        functions[labels[r]] = executor_runner(a.name, r.ops[0], a.executor.run)
    done("plan")
    running = [b for b in built if b.region in calls]
    for b in running:
        why = choices[b.region].why if b.region in choices else "generated code"
        assigned[b.region] = assign_kernel(nest_cost(b.nest, measured).us, why)
    for r in part.regions:
        if r not in assigned:
            why = unfit.get(r, "its kernel does not compile")
            assigned[r] = assign_fallback(r, why, measured)

    def run(clock: Clock | None) -> Run:
        given = (plan, launchers, constants, functions)
        return load_plan(*given) if clock is None else load_plan(*given, clock)

    return Assembled(run, running, assigned, repr(plan), notes)


def _measured_choices(part: Partition, target: Target, config: Config) -> dict[Region, Choice]:
    """What is fastest for each region, by measurement."""
    quiet = replace(config, strict=True)

    def make(alone: Partition, choices: Mapping[Region, Choice]) -> Run:
        given = Signature(alone.graph.inputs, alone.graph.outputs, {})
        cut, chosen = as_chosen(alone, choices)
        return _assemble(cut, given, (), chosen, target, quiet).load(None)

    def schedules(alone: Partition, region: Region) -> Sequence[Schedule]:
        made = _build(region, alone, frozenset(), target, quiet)
        if isinstance(made, Unfit):
            return ()
        kernel, machine = made.nest.kernel, measured_machine(target, config)
        nests = [build_nest(kernel, s, repeat=True) for s in variants(kernel, made.nest.schedule)]
        nests.sort(key=lambda nest: nest_cost(nest, machine).us)
        return [nest.schedule for nest in nests]

    def predicted(alone: Partition, region: Region) -> float:
        made = _build(region, alone, frozenset(), target, quiet)
        if isinstance(made, Unfit):
            return math.inf
        return nest_cost(made.nest, measured_machine(target, config)).us

    key = (repr(target), config.precision, *config.executors)
    return tune(part, Workshop(make, schedules, predicted), key, store_of(config))


def claims_of(config: Config) -> Claims:
    """The calls that stay whole, for executors that come before our kernels."""
    executors = executors_of(config)
    return executors.claims if executors.before(KERNELS) or not executors.kernels else nobody


def compile_text(text: str, config: Config, keep: Keep = lambda report: None) -> Run:
    """A callable for the text of a graph: its inputs, then its sizes by name, in one list."""
    graph = parse_graph(text)
    verify_graph(graph)
    values = (*graph.inputs, *(r for op in graph.ops for r in op.results))
    names = sorted({s for v in values for d in (*v.shape, *v.layout) for s in symbols_of(d)})
    arguments: tuple[Value | Dim, ...] = (*graph.inputs, *(symbol(s) for s in names))
    places = {s: ("argument", k, 0) for k, s in enumerate(names, len(graph.inputs))}
    captured = Captured(graph, arguments, graph.outputs, (), places)
    return compile_captured(captured, graph.name, config, keep)


def misfit(kernel: Kernel, target: Target, machine: Machine) -> str | None:
    """Why a kernel has no loop nest, or a worse one than its parts; None where it is good."""
    try:
        nest = build_nest(kernel, choose_schedule(kernel, target))
    except Unschedulable as e:
        return str(e)
    return loss(nest_cost(nest, machine))


@dataclass(frozen=True, eq=False)
class Built:
    """A region on its way to machine code; `broken` says why there will be none."""

    region: Region
    nest: Nest
    arguments: tuple[Value, ...]
    source: str
    broken: str | None = None


@dataclass(frozen=True, eq=False)
class Unfit:
    """A region that has no loop nest, such as a lone reduction of a broadcast tensor."""

    region: Region
    reason: str


def _build(
    region: Region,
    part: Partition,
    streams: frozenset[Value],
    target: Target,
    config: Config,
    schedule: Schedule | None = None,
) -> Built | Unfit:
    exact = config.precision == "eager"
    try:
        lowered = lower(region, part.storage, exact=exact)
        kernel = with_streams(coalesce(lowered.kernel), lowered.arguments, streams)
        verify(kernel)  # 8 us a statement, where compiling one takes 1000
        chosen = schedule or choose_schedule(kernel, target)
        nest = with_prefetch(build_nest(kernel, chosen, repeat=True))
    except (Misaligned, Unschedulable) as e:
        return Unfit(region, str(e))
    try:
        source = emit(nest, contract=not exact, avx512=target.avx512)
    except CompileError as e:
        return Built(region, nest, lowered.arguments, f"; {e}", str(e))
    return Built(region, nest, lowered.arguments, source)


def _load(
    built: Sequence[Built], part: Partition, config: Config
) -> tuple[list[Launcher], dict[Region, KernelCall], list[str]]:
    """Machine code for every distinct kernel; regions that do not compile are left out."""
    bind_threads(find_openmp())
    POOL.limit = config.pool_bytes if config.pool_bytes is not None else POOL.limit
    launchers: list[Launcher] = []
    calls: dict[Region, KernelCall] = {}
    numbers: dict[str, int] = {}
    broken: list[str] = []
    for b in built:
        name = b.nest.kernel.name
        text = b.source.replace(f"@{name}", "@kernel")
        if text not in numbers:
            try:
                if b.broken is not None:
                    raise CompileError(b.broken)
                (entry,) = load(text, ["kernel"])
            except CompileError as e:
                broken.append(_report_broken(b, part, config, e))
                continue
            numbers[text] = len(launchers)
            launchers.append(Launcher(entry, b.nest.kernel, b.nest.block_bytes))
        calls[b.region] = KernelCall(numbers[text], b.arguments, b.nest.kernel.symbols)
    return launchers, calls, broken


def _report_broken(b: Built, part: Partition, config: Config, error: CompileError) -> str:
    """Warn, or raise under `strict`, with a file that shows the failure again."""
    name = b.nest.kernel.name
    path = write_repro(b.region, part.storage, str(error), config.dump)
    at = "" if path is None else f"; {path} shows it again"
    lines = dict.fromkeys(repr(op.loc) for op in b.region.ops if op.loc is not None)
    where = f" (from {', '.join(lines)})" if lines else ""
    if config.strict:
        raise CompileError(f"{name}{where} does not compile: {error}{at}") from error
    message = f"tofuse runs {name}{where} through PyTorch: {error}{at}"
    warnings.warn(message, stacklevel=2)
    return f"{name}: {error}"


def _signature(captured: Captured, graph: Graph) -> Signature:
    """How a call's arguments and results map to the graph after passes, outputs by position."""
    constants = tuple(v for v, _ in captured.constants)
    now = dict(zip(captured.graph.outputs, graph.outputs, strict=True))
    results = tuple(now[r] if isinstance(r, Value) else r for r in captured.results)
    return Signature((*captured.arguments, *constants), results, captured.symbols)


def _target(region: Region) -> str:
    """The operator of a library call; the name of a region that PyTorch runs op by op."""
    return str(region.ops[0].attr("target")) if region.library else region.name


def _report(
    phase: str, graph: Graph, part: Partition, made: Assembled, stages: Sequence[Span]
) -> GraphReport:
    views = frozenset(op for op in graph.ops if is_view(op))
    ours = {b.region for b in made.built}
    assigned = made.assigned
    regions = [
        RegionReport(
            r.name,
            phase,
            tuple(op.kind if op.kind != "opaque" else str(op.attr("target")) for op in r.ops),
            tuple(dict.fromkeys(op.loc for op in r.ops if op.loc is not None)),
            region_bytes(r, part.storage),
            r.name if r in ours else None,
            tuple(v.name for op in r.ops for v in op.results),
            assigned[r].us,
            executor=assigned[r].name,
            why=assigned[r].why,
        )
        for r in part.regions
    ]
    calls = [
        LibraryCall(_target(r), phase, "library call" if r.library else "no kernel", r.ops[0].loc)
        for r in part.regions
        if r not in ours and not _target(r).startswith("tofuse.")
    ]
    kernels = [
        KernelReport(b.region.name, phase, b.source, f"{b.nest.kernel!r}\n{b.nest!r}")
        for b in made.built
    ]
    return GraphReport(
        phase,
        tuple(regions),
        tuple(kernels),
        tuple(calls),
        part.verdicts,
        bytes_before(graph, views),
        sum(r.nbytes for r in regions),
        (stages[-1].end - stages[0].begin) / 1e6,
        show_graph(part.graph),
        made.plan,
        tuple(made.notes),
        launches_before=len(graph.ops) - len(views),
        stages=tuple(stages),
    )
