"""Compile an ATen graph, or the text of a graph, to a callable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.backends.aten.run_graph import eager_graph_callable
from tofuse.backends.cpu.runtime.launch import thread_count
from tofuse.capture.aot.aot_graphs import AtenGraph
from tofuse.capture.aot.tangent_layouts import find_tangent_layouts
from tofuse.capture.joint.recomputed_products import FindRecomputable
from tofuse.capture.lower.convert import CapturedGraph, convert
from tofuse.capture.lower.effect_tokens import remove_effect_tokens
from tofuse.capture.lower.split_data_dependent import SplitGraph, split_data_dependent
from tofuse.config import Config
from tofuse.cost.machine_source import assumed_machine
from tofuse.driver.compiled_graph import CompiledGraph, Findings, eager_findings
from tofuse.driver.context import CompileContext, make_context
from tofuse.driver.library_products import product_rejection
from tofuse.driver.pipeline import compile_captured, cost_oracle
from tofuse.errors import CaptureError
from tofuse.ir.dims import Dim, symbol, symbols_of
from tofuse.ir.graph import Graph, Value
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.recomputable import RecomputableProducts
from tofuse.ir.size_expression import ArgumentSize, SizeSource
from tofuse.ops.check_graph import check_graph
from tofuse.passes.recomputable_products import recomputable_products
from tofuse.report.model import GraphReport
from tofuse.runtime.timing import Clock

SYMBOLIC_SIZES_NOTE = (
    "sizes are symbolic; numbers in this report are for the sizes of the first call; with"
    " specialize=True, sizes that recur get a program of their own"
)


def recomputable_finder(context: CompileContext) -> FindRecomputable | None:
    """Return what finds the products that a backward may compute again; None if kernels have none.

    See `recomputable_products`.
    """
    if product_rejection(context.config) is not None:
        return None

    def find(graph: Graph) -> RecomputableProducts:
        target = context.target(thread_count())
        machine = assumed_machine(target, context.config)
        return recomputable_products(graph, cost_oracle(target, machine).costs_of)

    return find


def compile_graph(
    graph: AtenGraph,
    context: CompileContext,
    fuel: int | None = None,
    notes: Sequence[str] = (),
    args: Sequence[object] = (),
) -> CompiledGraph:
    """Compile an ATen graph with at most `fuel` fusions; PyTorch runs all of it if that fails.

    A backward is compiled for the strides of the tangents among the arguments `args` of a call.

    PyTorch also runs calls whose result has a size that depends on data, between compiled parts.
    """
    gm, phase = remove_effect_tokens(graph.gm), graph.phase
    try:
        split = split_data_dependent(gm)
        if split is not None:
            return _compile_parts(split, phase, context, fuel, notes)
        captured = convert(gm, phase, context.claims, graph.memory, tuple(notes))
        if captured.symbols:
            captured = replace(captured, notes=(*captured.notes, SYMBOLIC_SIZES_NOTE))
        if phase != "backward":
            return compile_captured(captured, phase, context, fuel)
        tangents = find_tangent_layouts(captured).of_call(args)
        compiled = compile_captured(tangents.captured, phase, context, fuel)
        return replace(compiled, tangents=tangents if tangents.strides else None)
    except CaptureError as e:
        findings = eager_findings(f"{e}", phase, "graph")
    except Exception as error:
        findings = eager_findings(context.fallback_reason(error, gm))
    return CompiledGraph(eager_graph_callable(gm), findings)


def _compile_parts(
    split: SplitGraph,
    phase: str,
    context: CompileContext,
    fuel: int | None,
    notes: Sequence[str],
) -> CompiledGraph:
    """Compile the parts of a split graph, which eager runs with the calls between them."""
    notes = (*notes, split.note)
    findings = Findings(pure=False, has_fixed_bits=False)
    if not split.parts:
        findings = replace(findings, reports=(GraphReport(phase, notes=notes),), clocks=(Clock(),))
    for call, part in split.parts:
        left = None if fuel is None else fuel - findings.fusions
        compiled = compile_graph(AtenGraph(part, phase, None), context, left, notes)
        call.target, findings, notes = compiled.run, findings + compiled.findings, ()
    run = eager_graph_callable(split.outer, [call for call, _ in split.parts])
    return CompiledGraph(run, findings)


def compile_text(text: str, config: Config) -> CompiledGraph:
    """Compile the text of a graph.

    The callable takes one list: the inputs, then the symbolic sizes in the order of their names.
    """
    graph = parse_graph(text)
    check_graph(graph)
    dims = [d for v in graph.values() for d in (*v.shape, *v.layout)]
    names = sorted({s for d in dims for s in symbols_of(d)})
    arguments: tuple[Value | Dim, ...] = (*graph.inputs, *(symbol(s) for s in names))
    sources: dict[str, SizeSource] = {
        str(s): ArgumentSize("argument", k) for k, s in enumerate(names, len(graph.inputs))
    }
    captured = CapturedGraph(graph, arguments, graph.outputs, (), sources)
    return compile_captured(captured, graph.name, make_context(config), config.fuel)
