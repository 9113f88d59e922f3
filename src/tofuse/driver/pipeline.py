"""The compiler, top to bottom: from a captured graph to a callable and a report."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tofuse.analysis.alias import is_view
from tofuse.backends.aten.run_ops import graph_runner
from tofuse.backends.llvm.load import bind_functions, host_target
from tofuse.cache.artifact import Recorded
from tofuse.cache.programs import Programs
from tofuse.capture.aot.tangent_layouts import Gradients, gradients
from tofuse.capture.fx.eager_memory import EagerMemory
from tofuse.capture.lower.convert import AtenGraph, Captured, convert
from tofuse.capture.lower.executor_claims import Claims, nobody
from tofuse.config import Config
from tofuse.cost.machine_source import assumed_machine, measured_machine, store_of
from tofuse.cost.nest import nest_cost
from tofuse.driver.autotune import (
    Choice,
    Workshop,
    as_chosen,
    tune,
)
from tofuse.driver.codegen import Built, build_region
from tofuse.driver.link import Assembled, assemble
from tofuse.driver.oracle import Judge, gpu_misfit
from tofuse.errors import CaptureError
from tofuse.executors import executors_of
from tofuse.fusion.partition.memory_limit import partition_within
from tofuse.fusion.region_order import unfused_peak
from tofuse.ir.dims import Dim, symbol, symbols_of
from tofuse.ir.executor import KERNELS, Request
from tofuse.ir.graph import Graph, Value
from tofuse.ir.graph.parse import parse_graph
from tofuse.ir.graph.print import show_graph
from tofuse.ir.nest import Nest
from tofuse.ir.region import Partition, Region, Verdict, is_placed
from tofuse.ir.region.print import show_partition
from tofuse.ir.schedule import Schedule, Target
from tofuse.ops.check_graph import verify as verify_graph
from tofuse.passes import run_passes
from tofuse.passes.batch.remarks import near_misses
from tofuse.passes.unalias_outputs import unalias_outputs
from tofuse.plan.build import Signature, plan_timeline
from tofuse.plan.launch_groups import launch_count, sharing
from tofuse.report.model import (
    LITTLE,
    GraphReport,
    KernelReport,
    LibraryCall,
    RegionReport,
    Span,
    bytes_before,
    region_bytes,
    with_memory,
)
from tofuse.report.stage_log import Stages
from tofuse.runtime.clock import Clock
from tofuse.runtime.execute import CompiledPlan
from tofuse.runtime.launch import find_vector_library, thread_count
from tofuse.runtime.specialize_strides import ByLayout
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.variants import variants

Keep = Callable[[GraphReport], "Clock | None"]  # may answer with a clock to time the plan's steps


OPEN = (
    "sizes are symbols, and figures those of the first call's; sizes that keep coming are compiled"
    " for by themselves, unless specialize=False"
)


def unheard(report: GraphReport) -> None:
    """Where nobody asks for a report."""


def compile_graph(
    gm: AtenGraph, phase: str, config: Config, keep: Keep, programs: Programs | None = None
) -> CompiledPlan:
    """A callable for an ATen graph; PyTorch runs the whole of it where it cannot be captured.

    `programs` are told what it is made of.
    """
    try:
        captured = convert(gm, phase, claims_of(config))
    except CaptureError as e:
        keep(GraphReport(phase, notes=(f"the whole graph runs through PyTorch: {e}",)))
        return graph_runner(gm)
    if captured.symbols:
        captured = replace(captured, notes=(*captured.notes, OPEN))
    run, recorded = _compile(captured, phase, config, keep)
    given = gradients(captured) if phase == "backward" else None
    if given is not None and given.expected:
        # compiled again where gradients keep coming in another layout
        run = ByLayout(run, given.expected, partial(compile_laid, config, given, run))
    if programs is not None:
        programs.made(run, recorded, given)
    return run


def compile_laid(
    config: Config, given: Gradients, usual: CompiledPlan, layouts: Mapping[int, tuple[int, ...]]
) -> CompiledPlan:
    """A backward for gradients in another layout; the usual one copies them."""
    try:
        return compile_captured(given.laid(layouts), "backward", config, unheard)
    except Exception as error:
        if config.strict:
            raise
        warnings.warn(f"tofuse copies gradients of another layout: {error}", stacklevel=2)
        return usual


def compile_captured(captured: Captured, phase: str, config: Config, keep: Keep) -> CompiledPlan:
    """A callable for a captured program: flat arguments in one list to a list of results."""
    return _compile(captured, phase, config, keep)[0]


def _compile(
    captured: Captured, phase: str, config: Config, keep: Keep
) -> tuple[CompiledPlan, Recorded | None]:
    stages = Stages(phase, config.show, config.dump)
    graph = run_passes(captured.graph)
    graph = unalias_outputs(graph, captured.graph, _seen(captured, phase))
    stages.done("passes")
    stages.text("graph", lambda: show_graph(graph))
    target = host_target(thread_count())
    bind_functions(find_vector_library())
    machine = assumed_machine(target, config)
    memory = captured.memory or EagerMemory(unfused_peak(graph))
    kept = frozenset(memory.kept if phase == "backward" else ())
    # symbols count as one guess in our sizes, as their first values in eager's
    limit = unfused_peak(graph, kept) if captured.symbols else memory.peak(phase)
    judge = Judge(target, machine)
    part = partition_within(
        graph,
        judge.misfit,
        machine,
        None if _derived(captured) else limit + LITTLE,
        kept,
        config.fuel,
        gpu_misfit,
        judge.cost,
        config.precision == "eager",
    )
    stages.done("partition")
    _warn_refused(part.refused)
    choices = _measured_choices(part, target, config) if config.tune == "measure" else {}
    part, choices = as_chosen(part, choices)
    if choices:
        stages.done("measured choice")
    stages.text("regions", lambda: show_partition(part))
    constants = [t for _, t in captured.constants]
    signature = replace(_signature(captured, part.graph, phase), held=kept)
    made = assemble(part, signature, constants, choices, target, config, stages.done)
    stages.text("loops", lambda: "\n".join(f"{b.nest.kernel!r}\n{b.nest!r}" for b in made.built))
    stages.text("source", lambda: "\n".join(b.source for b in made.built))
    stages.text("plan", lambda: repr(made.plan))
    told = replace(part, verdicts=(*part.verdicts, *near_misses(captured.graph, graph)))
    report = _report(phase, captured.graph, told, made, stages.spans)
    report = replace(report, notes=(*captured.notes, *report.notes))
    held = [v for v in part.graph.inputs if v.name in kept]
    clock = keep(
        with_memory(
            report,
            plan_timeline(made.plan, part, held),
            eager_peak=limit,
            saved=memory.ours,
            eager_saved=memory.saved,
            repeated=memory.repeated,
            allowed=memory.allowed,
        )
    )
    return made.load(clock), made.recorded


def _seen(captured: Captured, phase: str) -> set[Value]:
    """The results that the caller gets, and may write: no gradients, and nothing that is saved."""
    if phase == "backward":
        return set()
    count = None
    if phase == "forward" and captured.memory is not None:
        count = captured.memory.results
    return {r for r in captured.results[:count] if isinstance(r, Value)}


def _derived(captured: Captured) -> bool:
    """Whether sizes depend on others (`s0 // 4`): guessed one by one, they do not fit together,
    and bytes cannot be compared."""
    return any(kind.startswith("expr:") for kind, _, _ in captured.symbols.values())


def _measured_choices(part: Partition, target: Target, config: Config) -> dict[Region, Choice]:
    """What is fastest for each region, by measurement."""
    quiet = replace(config, strict=True)

    def make(alone: Partition, choices: Mapping[Region, Choice]) -> CompiledPlan:
        given = Signature(alone.graph.inputs, alone.graph.outputs, {})
        cut, chosen = as_chosen(alone, choices)
        return assemble(cut, given, (), chosen, target, quiet).load(None)

    def nest_of(alone: Partition, region: Region) -> Nest | None:
        made = build_region(region, alone, frozenset(), target, quiet)
        return made.nest if isinstance(made, Built) and isinstance(made.nest, Nest) else None

    def schedules(alone: Partition, region: Region) -> Sequence[Schedule]:
        first = nest_of(alone, region)
        if first is None:
            return ()
        kernel, machine = first.kernel, measured_machine(target, config)
        nests = [build_nest(kernel, s, repeat=True) for s in variants(kernel, first.schedule)]
        nests.sort(key=lambda nest: nest_cost(nest, machine).us)
        return [nest.schedule for nest in nests]

    def predicted(alone: Partition, region: Region) -> float:
        nest = nest_of(alone, region)
        return math.inf if nest is None else nest_cost(nest, measured_machine(target, config)).us

    key = (repr(target), config.precision, *config.executors)
    return tune(part, Workshop(make, schedules, predicted), key, store_of(config))


def claims_of(config: Config) -> Claims:
    """The calls that stay whole: for executors before our kernels, or as we lack a function."""
    executors = executors_of(config)
    missing = frozenset(f"aten.{f}.default" for f in bind_functions(find_vector_library()))

    def claims(request: Request) -> bool:
        lacking = request.target in missing and all(t.device == "cpu" for t in request.inputs)
        return lacking or executors.claims(request)

    plain = executors.kernels and not executors.before(KERNELS)
    return nobody if plain and not missing else claims


def compile_text(text: str, config: Config, keep: Keep = unheard) -> CompiledPlan:
    """A callable for the text of a graph: its inputs, then its sizes by name, in one list."""
    graph = parse_graph(text)
    verify_graph(graph)
    values = (*graph.inputs, *(r for op in graph.ops for r in op.results))
    names = sorted({s for v in values for d in (*v.shape, *v.layout) for s in symbols_of(d)})
    arguments: tuple[Value | Dim, ...] = (*graph.inputs, *(symbol(s) for s in names))
    places = {str(s): ("argument", k, 0) for k, s in enumerate(names, len(graph.inputs))}
    captured = Captured(graph, arguments, graph.outputs, (), places)
    return compile_captured(captured, graph.name, config, keep)


def _warn_refused(refused: Sequence[Verdict]) -> None:
    """Say what could not be fused although the user asks for it."""
    if refused:
        edges = "; ".join(repr(v) for v in refused)
        warnings.warn(f"tofuse could not fuse all that fuse() asks for: {edges}", stacklevel=2)


def _signature(captured: Captured, graph: Graph, phase: str) -> Signature:
    """How a call's arguments and results map to the graph after passes, outputs by position."""
    constants = tuple(v for v, _ in captured.constants)
    now = dict(zip(captured.graph.outputs, graph.outputs, strict=True))
    results = tuple(now[r] if isinstance(r, Value) else r for r in captured.results)
    writes = tuple((t, new) for t, v in captured.writes if (new := now[v]) is not None)
    arguments = (*captured.arguments, *constants)
    # what was found to be all of what it is a view of is a tensor of its own still
    first: dict[Value, object] = {}
    seen = _seen(captured, phase)
    pairs = enumerate(zip(captured.results, results, strict=True))
    tensors = [(k, was, v) for k, (was, v) in pairs if isinstance(v, Value) and was in seen]
    distinct = {k for k, was, v in tensors if first.setdefault(v, was) is not was}
    again = tuple(sorted({*captured.again, *distinct}))
    return Signature(arguments, results, captured.symbols, writes, again)


def _call_reason(region: Region) -> str:
    """Why a region is a call, and what else the library does in it."""
    if not region.library:
        return "no kernel"
    done = [f" with its epilogue: {v}" for name, v in region.ops[0].attrs if name == "epilogue"]
    return "".join(["library call", *done])


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
        LibraryCall(_target(r), phase, _call_reason(r), r.ops[0].loc)
        for r in part.regions
        if r not in ours and not _target(r).startswith("tofuse.") and not is_placed(r.ops[-1])
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
        repr(made.plan),
        tuple(made.notes),
        launches_before=sum(op.times for op in graph.ops if op not in views),
        launches=launch_count(made.plan),
        sharing=sharing(made.plan),
        stages=tuple(stages),
        fusions=part.fusions,
    )
