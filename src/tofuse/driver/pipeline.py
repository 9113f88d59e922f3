"""The compiler, top to bottom: the passes of every level, in order, and what runs them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch.fx import GraphModule

from tofuse.backends.backend_of import MakeBackend, make_backends
from tofuse.backends.code_library import CodeLibrary
from tofuse.backends.cpu.runtime.launch import thread_count
from tofuse.backends.cpu.schedule.prefetch import prefetch
from tofuse.backends.cpu.schedule.unroll_axes import unroll_axes
from tofuse.capture.fx.eager_memory import EagerMemory, simulate_eager
from tofuse.capture.joint.complex.complex_to_real import complex_to_real
from tofuse.capture.joint.loss_gradients import loss_gradients
from tofuse.capture.joint.merge_seeds import merge_seeds
from tofuse.capture.joint.narrow_indices import narrow_indices
from tofuse.capture.joint.partition import clean_recompute_tags
from tofuse.capture.joint.scatter_to_select import scatter_to_select
from tofuse.capture.joint.tangent_dtypes import tangent_dtypes
from tofuse.capture.lower.convert import CapturedGraph
from tofuse.capture.lower.executor_claims import ClaimPredicate
from tofuse.capture.pre_autograd.channels_last import channels_last
from tofuse.capture.pre_autograd.indexing import indexing
from tofuse.capture.pre_autograd.interpolate import interpolate
from tofuse.capture.pre_autograd.noop_dropout import noop_dropout
from tofuse.capture.pre_autograd.pack_convolutions import pack_convolutions
from tofuse.capture.pre_autograd.preserve_strides import preserve_strides
from tofuse.capture.pre_autograd.product_gradients import product_gradients
from tofuse.capture.pre_autograd.replace_functions import replace_functions
from tofuse.capture.pre_autograd.sharded_dropout import sharded_dropout
from tofuse.capture.pre_autograd.vectorize import vectorize
from tofuse.config import Config
from tofuse.cost.machine import Machine
from tofuse.cost.machine_source import assumed_machine, measured_machine
from tofuse.driver.assign_executors import (
    assign_kernels_and_fallbacks,
    assign_library_calls,
    requested_kernels,
    tuning_notes,
)
from tofuse.driver.call_signature import call_signature, caller_outputs
from tofuse.driver.choice import Choice
from tofuse.driver.codegen import CodegenContext, generate_kernels
from tofuse.driver.compiled_graph import CompiledGraph, graph_findings
from tofuse.driver.context import CompileContext
from tofuse.driver.graph_report import add_memory, graph_report
from tofuse.driver.library_products import library_products, product_rejection
from tofuse.driver.link import (
    LinkedProgram,
    executor_targets,
    python_callables,
)
from tofuse.driver.load_kernels import linking_of, load_groups, load_kernels
from tofuse.driver.oracle import CostOracle
from tofuse.driver.plan_passes import plan_passes
from tofuse.driver.predict import predict
from tofuse.driver.tune_partition import TunedPartition, tune_partition
from tofuse.errors import TofuseWarning
from tofuse.executors import executors_of
from tofuse.fusion.concat.eliminate_concats import eliminate_concats, eliminate_stored_concats
from tofuse.fusion.fold_epilogues import fold_epilogues
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lowering_memo import LoweringMemo
from tofuse.fusion.nontemporal import mark_nontemporal, nontemporal_values
from tofuse.fusion.overlap_collectives import overlap_collectives
from tofuse.fusion.partition.memory_limit import (
    allowed_peak,
    exceeds_limit,
    partition_within_memory_limit,
)
from tofuse.fusion.partition.partitioner import form_regions
from tofuse.fusion.partition.region_evaluator import RegionEvaluator
from tofuse.fusion.partition.region_split import Split
from tofuse.fusion.region_liveness import unfused_peak
from tofuse.fusion.split_reductions import split_reductions
from tofuse.fusion.views.duplicate_sources import duplicate_sources
from tofuse.fusion.views.duplicate_views import duplicate_views
from tofuse.fusion.views.materialize_views import materialize_views
from tofuse.graph_partition import Partition, show_partition
from tofuse.ir.graph import Graph, show_graph
from tofuse.ir.line_reader import SEPARATOR
from tofuse.ir.region import Region, Side
from tofuse.ir.rules import Reason
from tofuse.ir.schedule import Target
from tofuse.passes.batch.batch_branches import batch_branches
from tofuse.passes.batch.remarks import missed_batching_remarks
from tofuse.passes.canonicalize_views import canonicalize_views
from tofuse.passes.choose_contractions import choose_contractions
from tofuse.passes.chunk.chunk_rows import chunk_rows
from tofuse.passes.closed_form_reductions import closed_form_reductions
from tofuse.passes.cse import cse
from tofuse.passes.dead_code import dead_code
from tofuse.passes.fold_constants import fold_constants
from tofuse.passes.hoist_gather import hoist_gather
from tofuse.passes.matvec import matvec
from tofuse.passes.pad_add_to_concat import pad_add_to_concat
from tofuse.passes.product_verdicts import explain_products
from tofuse.passes.propagate_strides import propagate_strides
from tofuse.passes.reroll.reroll import has_loops, reroll_loops
from tofuse.passes.simplify import simplify
from tofuse.passes.unalias_outputs import unalias_outputs
from tofuse.plan.build import build_plan
from tofuse.plan.signature import CallSignature
from tofuse.report.stage_log import StageLog
from tofuse.runtime.execute import Tensor
from tofuse.runtime.out_variants import out_variant
from tofuse.torch_internals.private_names import missing_notes

# The passes of every level, from the top.

# Dynamo's program, before autograd. `vectorize` and `channels_last` return a new program.
PRE_AUTOGRAD_PASSES = (
    *(noop_dropout, interpolate, replace_functions, sharded_dropout, indexing),
    *(preserve_strides, vectorize, product_gradients, channels_last, pack_convolutions),
)


# The joint graph, before it is cut into forward and backward. Before these run `merge_seeds` and
# `complex_to_real`, which run on inference graphs, too (`run_traced_passes`).
JOINT_PASSES = (
    *(clean_recompute_tags, tangent_dtypes, scatter_to_select),
    *(narrow_indices, loss_gradients),
)

# Graph -> Graph: first `reroll`, unless the program then holds too much; the first passes once, so
# that the others see one of many isomorphic branches; then the others to a fixed point; then
# strides, and what they make redundant.
FIRST_GRAPH_PASSES = (dead_code, pad_add_to_concat, batch_branches)
GRAPH_PASSES = (
    dead_code,
    fold_constants,
    simplify,
    canonicalize_views,
    closed_form_reductions,
    pad_add_to_concat,
    cse,
    batch_branches,
    matvec,
    hoist_gather,
)
MAX_ROUNDS = 3  # of GRAPH_PASSES, if they reach no fixed point before
LAST_GRAPH_PASSES = (dead_code, chunk_rows, propagate_strides, simplify, dead_code)

# Graph -> Graph, given the storage of each value: before regions are formed.
VIEW_PASSES = (materialize_views, duplicate_sources, duplicate_views)

# Kernel -> Kernel: once for regions of equal structure; on the CPU, before a kernel is scheduled;
# and for the kernel of each region.
KERNEL_PASSES = (coalesce,)
CPU_KERNEL_PASSES = (unroll_axes,)
LAST_KERNEL_PASSES = (mark_nontemporal,)

NEST_PASSES = (prefetch,)  # Nest -> Nest
BACKENDS = make_backends(CPU_KERNEL_PASSES, NEST_PASSES)


# The functions that run them.


def run_traced_passes(
    gm: GraphModule,
    num_fwd_outputs: int | None,
    claims: ClaimPredicate,
    images_converted: bool = False,
) -> tuple[GraphModule, EagerMemory]:
    """Run the passes over a joint graph, or an inference graph (None).

    Return the graph, and eager's memory. Calls that an executor claims stay whole.
    `images_converted`: the pass `channels_last` has changed the program.
    """
    gm = merge_seeds(gm)
    memory = simulate_eager(gm, num_fwd_outputs, images_converted)  # before pairs: as in eager
    gm = complex_to_real(gm, claims, num_fwd_outputs)
    for joint_pass in () if num_fwd_outputs is None else JOINT_PASSES:
        gm = joint_pass(gm)
    return gm, memory


def run_graph_passes(graph: Graph) -> Graph:
    """Run all graph passes but `reroll`."""
    for graph_pass in FIRST_GRAPH_PASSES:
        graph = graph_pass(graph)
    for _ in range(MAX_ROUNDS):
        before = graph
        for graph_pass in GRAPH_PASSES:
            graph = graph_pass(graph)
        if graph is before:
            break
    for graph_pass in LAST_GRAPH_PASSES:
        graph = graph_pass(graph)
    return graph


def compile_captured(
    captured: CapturedGraph, phase: str, compile_context: CompileContext, fuel: int | None = None
) -> CompiledGraph:
    """Run all stages below capture: graph passes, fusion, code generation, planning, linking.

    At most `fuel` pairs of ops are fused; None: any number.
    """
    config = compile_context.config
    log = StageLog(phase, config.show, config.dump)
    rerolled, remarks = reroll_loops(captured.graph)
    graph = optimized_graph(captured, phase, rerolled)
    log.finish_stage("passes")
    log.log_text("graph", lambda: show_graph(graph))
    memory = captured.eager_memory or EagerMemory(unfused_peak(graph))
    saved = frozenset(memory.saved_arguments if phase == "backward" else ())
    limit = memory.peak(phase)
    target = compile_context.target(thread_count())
    oracle = cost_oracle(target, assumed_machine(target, config))
    limited = None if captured.has_derived_sizes else limit
    fuse_part = partial(fuse, oracle=oracle, config=config, fuel=fuel, trains=phase != "inference")
    fuse_whole = partial(fuse_part, limit=limited, saved=saved)
    part = fuse_whole(graph)
    if has_loops(graph) and limited is not None and exceeds_limit(part, limited, saved):
        graph = optimized_graph(captured, phase, captured.graph)
        part = fuse_whole(graph)
    log.finish_stage("partition")
    constants, library = [t for _, t in captured.constants], compile_context.library
    tuned = TunedPartition(part, {})
    if config.tune == "measure":
        build = partial(build_program, constants=(), oracle=oracle, library=library)
        context = codegen_context(part, oracle, config)
        tuned = tune_partition(graph, context, fuse_part, fuse_whole, build)
        log.finish_stage("measured choice")
    part, choices = tuned.partition, tuned.choices
    log.log_text("regions", lambda: show_partition(part))

    signature = replace(call_signature(captured, part.graph, phase), saved=saved)
    program = build_program(
        part, signature, choices, config, constants, oracle, library, log.finish_stage
    )
    program = replace(program, prediction=predict(captured, program, phase, oracle))
    generated = program.generated
    log.log_text("loops", lambda: f"\n{SEPARATOR}\n".join(repr(g.scheduled) for g in generated))
    log.log_text("source", lambda: "\n".join(g.source for g in generated))
    log.log_text("plan", lambda: repr(program.plan))

    remarks = (*missed_batching_remarks(captured.graph, graph), *remarks)
    explained = replace(part, verdicts=(*part.verdicts, *remarks))
    report = graph_report(phase, captured.graph, explained, program, log.spans)
    report = replace(report, notes=(*captured.notes, *tuned.notes, *report.notes, *missing_notes()))
    report = add_memory(report, memory, limit)
    found = graph_findings(report, program.prediction, captured.graph)
    run = program.load(found.clocks[0] if compile_context.timed else None)
    artifact = program.artifact and replace(program.artifact, has_fixed_bits=found.has_fixed_bits)
    return CompiledGraph(run, found, artifact)


def optimized_graph(captured: CapturedGraph, phase: str, rerolled: Graph) -> Graph:
    """Return the graph after all graph passes; `rerolled` is the captured one after `reroll`."""
    graph = run_graph_passes(rerolled)
    return unalias_outputs(graph, captured.graph, caller_outputs(captured, phase))


def fuse(
    graph: Graph,
    limit: int | None = None,
    saved: frozenset[str] = frozenset(),
    *,
    oracle: CostOracle,
    config: Config,
    fuel: int | None = None,
    trains: bool = False,
) -> Partition:
    """Partition the graph into regions that hold at most `limit` bytes; warn of failed hints.

    `trains`: it is a forward with a backward, or a backward.
    """
    evaluator = RegionEvaluator(oracle.evaluate, oracle.costs_of, oracle.lowerings)
    exact, rejection = config.rounds_as_eager, product_rejection(config)
    partition_graph = partial(partition, fuel=fuel, exact=exact, rejection=rejection, trains=trains)
    part = partition_within_memory_limit(
        split_reductions(graph, oracle.costs_of),
        partition_graph,
        evaluator,
        None if limit is None else allowed_peak(limit),
        saved,
    )
    part = overlap_collectives(part, saved)
    if part.rejected_hints:
        edges = "; ".join(map(repr, part.rejected_hints))
        warnings.warn(f"tofuse could not fuse everything inside fuse(): {edges}", TofuseWarning, 2)
    return part


def partition(
    graph: Graph,
    evaluator: RegionEvaluator,
    splits: Collection[Split] = (),
    in_place_concats: bool = True,
    *,
    fuel: int | None = None,
    exact: bool = False,
    rejection: Reason | None = None,
    trains: bool = False,
) -> Partition:
    """Form regions, rewrite the graph by what they show, and form regions again.

    `in_place_concats`: operands of concats may be written into the concat; otherwise each has
    memory of its own. `rejection`: why no kernel computes products; `trains`: see `fuse`; the rest:
    see `form_regions`.
    """
    costs_of = evaluator.costs_of

    def form(graph: Graph, sides: Mapping[str, Side], fuel: int | None = None) -> Partition:
        return form_regions(graph, evaluator, VIEW_PASSES, fuel, splits, exact, sides)

    def form_first(graph: Graph, sides: Mapping[str, Side]) -> Partition:
        return form(eliminate_concats(graph, costs_of, in_place_concats), sides)

    found = choose_contractions(
        graph, form_first, evaluator.region_us, costs_of, rejection, trains=trains
    )
    rewritten = fold_epilogues(part := found.partition)
    if in_place_concats:
        rewritten = eliminate_stored_concats(rewritten, part, costs_of)
    if rewritten is not part.graph or fuel is not None:
        part = form(rewritten, found.sides, fuel)
    return explain_products(part, found.reasons)


def cost_oracle(
    target: Target, machine: Machine, backends: Mapping[str, MakeBackend] = BACKENDS
) -> CostOracle:
    """Return the oracle of a compilation, whose kernels go through all passes."""
    return CostOracle(target, machine, LoweringMemo(KERNEL_PASSES), backends)


def codegen_context(part: Partition, oracle: CostOracle, config: Config) -> CodegenContext:
    """Return the context for code generation of all regions of a partition."""
    nontemporal = nontemporal_values(part, oracle.machine.l3_bytes)
    return CodegenContext(part, nontemporal, LAST_KERNEL_PASSES, oracle, config)


def build_program(
    part: Partition,
    signature: CallSignature,
    choices: Mapping[Region, Choice],
    config: Config,
    constants: Sequence[Tensor],
    oracle: CostOracle,
    library: CodeLibrary,
    finish_stage: Callable[[str], None] = lambda stage: None,
) -> LinkedProgram:
    """Generate and load kernels, plan the call, and link both."""
    machine, executors = measured_machine(oracle.target, config), executors_of(config)
    context = codegen_context(part, oracle, config)
    context = replace(context, mutations=frozenset(signature.mutations))
    assigned = assign_library_calls(part, executors, machine, oracle)
    requested, rejected = requested_kernels(part, choices, executors)
    generated, unschedulable = generate_kernels(requested, context)
    rejected |= unschedulable
    finish_stage("lower and emit")

    linking = linking_of(library, config)
    loaded = load_kernels(generated, context, linking)
    loaded, products = library_products(loaded, assigned, context, machine, linking)
    assigned |= products
    finish_stage("machine code")

    running = [g for g in generated if g.region in loaded.bindings]
    bindings = {} if config.verify else loaded.bindings  # verified kernels are called by name
    callables = python_callables(context, loaded, bindings, assigned)
    targets = executor_targets(assigned)
    passes = partial(plan_passes, machine=oracle.machine)
    plan = build_plan(part, signature, bindings, targets, out_variant, passes)
    groups = load_groups(plan, running, loaded, context, linking.threads)
    finish_stage("plan")

    assigned |= assign_kernels_and_fallbacks(part, running, rejected, choices, machine, oracle)
    notes = [
        *loaded.notes,
        *(f"{r.name} runs through PyTorch: {why}" for r, why in rejected.items()),
        *tuning_notes(choices),
    ]
    return LinkedProgram(
        plan,
        loaded.launchers,
        groups,
        callables,
        constants,
        library,
        config,
        oracle.recorder(part.graph, plan),
        running,
        assigned,
        notes,
    )
