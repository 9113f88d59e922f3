"""The compiler, top to bottom: from a captured graph to a callable and a report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tofuse.backends.aten.run_ops import executor_runner, graph_runner, region_runner
from tofuse.backends.llvm.load import bind_vector_library, host_target, load
from tofuse.backends.llvm.parallel_driver import PARALLEL_DRIVER
from tofuse.cache.artifact import (
    Artifact,
    load_product,
)
from tofuse.cache.programs import ProgramCache
from tofuse.capture.aot.tangent_layouts import TangentLayouts, find_tangent_layouts
from tofuse.capture.fx.eager_memory import EagerMemory
from tofuse.capture.lower.convert import CapturedGraph, FxGraphModule, convert
from tofuse.config import Config
from tofuse.cost.machine_source import assumed_machine, measured_machine, store_of
from tofuse.driver.autotune import (
    Choice,
    apply_choices,
)
from tofuse.driver.call_signature import call_signature, caller_outputs
from tofuse.driver.codegen import (
    GeneratedKernel,
    RejectedRegion,
    generate_kernels,
)
from tofuse.driver.gemm import build_products
from tofuse.driver.graph_report import graph_report
from tofuse.driver.kernel_verifier import kernel_verifier, verified_regions
from tofuse.driver.link import (
    LinkedProgram,
    assign_kernels,
    program_artifact,
    requested_kernels,
    unsupported_notes,
)
from tofuse.driver.load_kernels import load_kernels
from tofuse.driver.operator_claims import claims_of
from tofuse.driver.oracle import CostOracle, reject_on_gpu
from tofuse.driver.report_sink import ReportSink, discard_report
from tofuse.driver.tuning_callbacks import measured_choices
from tofuse.errors import CaptureError
from tofuse.executors import executors_of
from tofuse.fusion.assign_executors import (
    assign_call,
    assign_fallback,
)
from tofuse.fusion.nontemporal import nontemporal_values
from tofuse.fusion.partition.memory_limit import partition_within_memory_limit
from tofuse.fusion.region_liveness import unfused_peak
from tofuse.ir.dims import Dim, symbol, symbols_of
from tofuse.ir.graph import Value
from tofuse.ir.graph.parse import parse_graph
from tofuse.ir.graph.print import show_graph
from tofuse.ir.plan import Call
from tofuse.ir.region import Partition, Region, Verdict
from tofuse.ir.region.print import show_partition
from tofuse.ir.schedule import Target
from tofuse.ops.check_graph import check_graph
from tofuse.passes import run_passes
from tofuse.passes.batch.remarks import missed_batching_remarks
from tofuse.passes.unalias_outputs import unalias_outputs
from tofuse.plan.build import build_plan, plan_timeline
from tofuse.plan.build_steps import inline_reversed_views
from tofuse.plan.signature import CallSignature
from tofuse.report.model import (
    PEAK_TOLERANCE,
    GraphReport,
    add_memory_use,
)
from tofuse.report.stage_log import StageLog
from tofuse.runtime.clock import Clock
from tofuse.runtime.execute import CompiledPlan, Tensor, load_plan
from tofuse.runtime.launch import find_vector_library, thread_count
from tofuse.runtime.out_variants import out_variant
from tofuse.runtime.specialize_strides import StrideSpecializer

SYMBOLIC_SIZES_NOTE = (
    "sizes are symbols, and figures those of the first call's; sizes that keep coming are compiled"
    " for by themselves, unless specialize=False"
)


def compile_graph(
    gm: FxGraphModule,
    phase: str,
    config: Config,
    keep: ReportSink,
    programs: ProgramCache | None = None,
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
        captured = replace(captured, notes=(*captured.notes, SYMBOLIC_SIZES_NOTE))
    run, recorded = _compile_stages(captured, phase, config, keep)
    given = find_tangent_layouts(captured) if phase == "backward" else None
    if given is not None and given.expected:
        # compiled again where gradients keep coming in another layout
        run = StrideSpecializer(
            run, given.expected, partial(compile_for_strides, config, given, run)
        )
    if programs is not None:
        programs.record(run, recorded, given)
    return run


def compile_for_strides(
    config: Config,
    given: TangentLayouts,
    usual: CompiledPlan,
    layouts: Mapping[int, tuple[int, ...]],
) -> CompiledPlan:
    """A backward for gradients in another layout; the usual one copies them."""
    try:
        return compile_captured(given.with_strides(layouts), "backward", config, discard_report)
    except Exception as error:
        if config.strict:
            raise
        warnings.warn(f"tofuse copies gradients of another layout: {error}", stacklevel=2)
        return usual


def compile_captured(
    captured: CapturedGraph, phase: str, config: Config, keep: ReportSink
) -> CompiledPlan:
    """A callable for a captured program: flat arguments in one list to a list of results."""
    return _compile_stages(captured, phase, config, keep)[0]


def _compile_stages(
    captured: CapturedGraph, phase: str, config: Config, keep: ReportSink
) -> tuple[CompiledPlan, Artifact | None]:
    stages = StageLog(phase, config.show, config.dump)
    graph = run_passes(captured.graph)
    graph = unalias_outputs(graph, captured.graph, caller_outputs(captured, phase))
    stages.finish_stage("passes")
    stages.log_text("graph", lambda: show_graph(graph))
    target = host_target(thread_count())
    bind_vector_library(find_vector_library())
    machine = assumed_machine(target, config)
    memory = captured.eager_memory or EagerMemory(unfused_peak(graph))
    kept = frozenset(memory.saved_arguments if phase == "backward" else ())
    # symbols count as one guess in our sizes, as their first values in eager's
    limit = unfused_peak(graph, kept) if captured.symbols else memory.peak(phase)
    judge = CostOracle(target, machine)
    part = partition_within_memory_limit(
        graph,
        judge.reject,
        machine,
        None if _has_derived_sizes(captured) else limit + PEAK_TOLERANCE,
        kept,
        config.fuel,
        reject_on_gpu,
        judge.cost,
        config.precision == "eager",
    )
    stages.finish_stage("partition")
    _warn_refused(part.rejected_hints)
    choices = (
        measured_choices(part, target, config, build_program) if config.tune == "measure" else {}
    )
    part, choices = apply_choices(part, choices)
    if choices:
        stages.finish_stage("measured choice")
    stages.log_text("regions", lambda: show_partition(part))
    constants = [t for _, t in captured.constants]
    signature = replace(call_signature(captured, part.graph, phase), saved=kept)
    made = build_program(part, signature, constants, choices, target, config, stages.finish_stage)
    stages.log_text(
        "loops", lambda: "\n".join(f"{b.nest.kernel!r}\n{b.nest!r}" for b in made.built)
    )
    stages.log_text("source", lambda: "\n".join(b.source for b in made.built))
    stages.log_text("plan", lambda: repr(made.plan))
    told = replace(part, verdicts=(*part.verdicts, *missed_batching_remarks(captured.graph, graph)))
    report = graph_report(phase, captured.graph, told, made, stages.spans)
    report = replace(report, notes=(*captured.notes, *report.notes))
    held = [v for v in part.graph.inputs if v.name in kept]
    clock = keep(
        add_memory_use(
            report,
            plan_timeline(made.plan, part, held),
            eager_peak=limit,
            saved=memory.our_saved_bytes,
            eager_saved=memory.saved_bytes,
            recomputed=memory.recomputed_calls,
            budget=memory.budget_bytes,
        )
    )
    return made.load(clock), made.recorded


def _has_derived_sizes(captured: CapturedGraph) -> bool:
    """Whether sizes depend on others (`s0 // 4`): guessed one by one, they do not fit together,
    and bytes cannot be compared."""
    return any(kind.startswith("expr:") for kind, _, _ in captured.symbols.values())


def compile_text(text: str, config: Config, keep: ReportSink = discard_report) -> CompiledPlan:
    """A callable for the text of a graph: its inputs, then its sizes by name, in one list."""
    graph = parse_graph(text)
    check_graph(graph)
    values = (*graph.inputs, *(r for op in graph.ops for r in op.results))
    names = sorted({s for v in values for d in (*v.shape, *v.layout) for s in symbols_of(d)})
    arguments: tuple[Value | Dim, ...] = (*graph.inputs, *(symbol(s) for s in names))
    places = {str(s): ("argument", k, 0) for k, s in enumerate(names, len(graph.inputs))}
    captured = CapturedGraph(graph, arguments, graph.outputs, (), places)
    return compile_captured(captured, graph.name, config, keep)


def _warn_refused(refused: Sequence[Verdict]) -> None:
    """Say what could not be fused although the user asks for it."""
    if refused:
        edges = "; ".join(repr(v) for v in refused)
        warnings.warn(f"tofuse could not fuse all that fuse() asks for: {edges}", stacklevel=2)


def build_program(
    part: Partition,
    signature: CallSignature,
    constants: Sequence[Tensor],
    choices: Mapping[Region, Choice],
    target: Target,
    config: Config,
    done: Callable[[str], None] = lambda stage: None,
) -> LinkedProgram:
    """Machine code and a plan for a partition; `done` is told of each stage."""
    measured = measured_machine(target, config)
    streams = nontemporal_values(part, assumed_machine(target, config).l3_bytes)
    executors = executors_of(config)
    assigned = {
        r: assign_call(r, executors, measured, out_variant) for r in part.regions if r.library
    }
    wanted, unfit = requested_kernels(part, choices, executors)
    made = generate_kernels(wanted, part, streams, target, config)
    built = [b for b in made if isinstance(b, GeneratedKernel)]
    unfit |= {u.region: u.reason for u in made if isinstance(u, RejectedRegion)}
    done("lower and emit")
    launchers, calls, notes = load_kernels(built, part, config)
    products = build_products(part, assigned, target, config, measured, launchers)
    calls |= {r: call for r, (call, _) in products.items()}
    launchers += [load_product(code, store_of(config)) for _, code in products.values()]
    done("machine code")
    notes += [f"{r.name} runs through PyTorch: {why}" for r, why in unfit.items()]
    users = {r: a for r, a in assigned.items() if a.executor is not None}
    labels = {r: f"{a.label(r.ops[0])}_{k}" for k, (r, a) in enumerate(users.items())}
    checked = verified_regions(calls, config)
    notes += unsupported_notes(part, config)
    launched = {r: c for r, c in calls.items() if r not in checked}
    plan = build_plan(part, signature, launched, labels, out_variant)
    check = kernel_verifier(part, streams, target, config)
    whole = {r: inline_reversed_views(r, part) for r in part.regions if not r.library}
    functions: dict[str, Callable[..., object]] = {
        f"region{k}": check(whole[r], calls[r], launchers)
        if r in checked
        else region_runner(whole[r])
        for k, r in enumerate(part.regions)
        if not r.library
    }
    for r, a in users.items():
        assert a.executor is not None
        functions[labels[r]] = executor_runner(a.name, r.ops[0], a.executor.run)
    done("plan")
    running = [b for b in built if b.region in calls]
    assigned |= assign_kernels(running, part, choices, measured)
    for r in (r for r in part.regions if r not in assigned):
        why = unfit.get(r, "its kernel does not compile")
        assigned[r] = assign_fallback(r, why, measured)

    (driver,) = load(PARALLEL_DRIVER, ["kernel"], store_of(config))

    def run(clock: Clock | None) -> CompiledPlan:
        return load_plan(plan, launchers, driver, constants, functions, clock)

    called = any(isinstance(s, Call) and s.target in functions for s in plan.steps)
    recorded = None if called else program_artifact(plan, launchers, constants)
    return LinkedProgram(run, running, assigned, plan, notes, recorded)
