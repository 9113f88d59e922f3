"""Compile an ATen graph, or the text of a graph, to a callable."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tofuse.backends.aten.run_ops import eager_graph_callable
from tofuse.cache.programs import ProgramCache
from tofuse.capture.aot.tangent_layouts import TangentLayouts, find_tangent_layouts
from tofuse.capture.lower.convert import CapturedGraph, FxGraphModule, convert
from tofuse.config import Config
from tofuse.driver.operator_claims import claims_of
from tofuse.driver.pipeline import compile_captured, compile_with_artifact
from tofuse.driver.report_sink import ReportSink, discard_report
from tofuse.errors import CaptureError
from tofuse.ir.dims import Dim, symbol, symbols_of
from tofuse.ir.graph import Value
from tofuse.ir.graph.parse import parse_graph
from tofuse.ops.check_graph import check_graph
from tofuse.report.model import GraphReport
from tofuse.runtime.execute import CompiledPlan
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
        return eager_graph_callable(gm)
    if captured.symbols:
        captured = replace(captured, notes=(*captured.notes, SYMBOLIC_SIZES_NOTE))
    run, recorded = compile_with_artifact(captured, phase, config, keep)
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
