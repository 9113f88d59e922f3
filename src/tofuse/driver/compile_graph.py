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
from tofuse.ir.size_expression import ArgumentSize, SizeSource
from tofuse.ops.check_graph import check_graph
from tofuse.report.model import GraphReport
from tofuse.runtime.execute import CompiledPlan
from tofuse.runtime.specialize_strides import StrideSpecializer

SYMBOLIC_SIZES_NOTE = (
    "sizes are symbolic; numbers in this report are for the sizes of the first call; unless"
    " specialize=False, sizes that recur get a program of their own"
)


def compile_graph(
    gm: FxGraphModule,
    phase: str,
    config: Config,
    sink: ReportSink,
    programs: ProgramCache | None = None,
) -> CompiledPlan:
    """Return a callable for an ATen graph; PyTorch runs the whole graph if capture fails.

    `programs` records the compiled program.
    """
    try:
        captured = convert(gm, phase, claims_of(config))
    except CaptureError as e:
        sink(GraphReport(phase, notes=(f"PyTorch runs the whole graph: {e}",)))
        return eager_graph_callable(gm)
    if captured.symbols:
        captured = replace(captured, notes=(*captured.notes, SYMBOLIC_SIZES_NOTE))
    run, artifact = compile_with_artifact(captured, phase, config, sink)
    tangents = find_tangent_layouts(captured) if phase == "backward" else None
    if tangents is not None and tangents.expected:
        # compile again for tangents whose other strides recur
        run = StrideSpecializer(
            run, tangents.expected, partial(compile_for_strides, config, tangents, run)
        )
    if programs is not None:
        programs.record(run, artifact, tangents)
    return run


def compile_for_strides(
    config: Config,
    tangents: TangentLayouts,
    default: CompiledPlan,
    strides: Mapping[int, tuple[int, ...]],
) -> CompiledPlan:
    """Compile the backward for tangents with these strides; on failure return `default`.

    `default` copies tangents that do not have the expected strides.
    """
    try:
        return compile_captured(tangents.with_strides(strides), "backward", config, discard_report)
    except Exception as error:
        if config.strict:
            raise
        warnings.warn(f"tofuse copies gradients to other strides: {error}", stacklevel=2)
        return default


def compile_text(text: str, config: Config, sink: ReportSink = discard_report) -> CompiledPlan:
    """Return a callable for the text of a graph.

    It takes one list: the inputs, then the symbolic sizes in the order of their names.
    """
    graph = parse_graph(text)
    check_graph(graph)
    values = (*graph.inputs, *(r for op in graph.ops for r in op.results))
    names = sorted({s for v in values for d in (*v.shape, *v.layout) for s in symbols_of(d)})
    arguments: tuple[Value | Dim, ...] = (*graph.inputs, *(symbol(s) for s in names))
    sources: dict[str, SizeSource] = {
        str(s): ArgumentSize("argument", k) for k, s in enumerate(names, len(graph.inputs))
    }
    captured = CapturedGraph(graph, arguments, graph.outputs, (), sources)
    return compile_captured(captured, graph.name, config, sink)
