"""Compile an ATen graph, or the text of a graph, to a callable."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from tofuse.backends.aten.run_graph import eager_graph_callable
from tofuse.cache.artifact import Artifact
from tofuse.capture.aot.aot_graphs import AtenGraph
from tofuse.capture.aot.tangent_layouts import TangentLayouts, find_tangent_layouts
from tofuse.capture.lower.convert import CapturedGraph, convert
from tofuse.capture.lower.effect_tokens import remove_effect_tokens
from tofuse.capture.lower.split_data_dependent import SplitGraph, split_data_dependent
from tofuse.config import Config
from tofuse.driver.context import CompileContext, ReportSink, discard_report, make_context
from tofuse.driver.pipeline import compile_captured
from tofuse.driver.variants import NEW_KEY, Dispatcher
from tofuse.errors import CaptureError, TofuseWarning
from tofuse.ir.dims import Dim, symbol, symbols_of
from tofuse.ir.graph import Value
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.size_expression import ArgumentSize, SizeSource
from tofuse.ops.check_graph import check_graph
from tofuse.report.model import GraphReport
from tofuse.runtime.execute import CompiledPlan

SYMBOLIC_SIZES_NOTE = (
    "sizes are symbolic; numbers in this report are for the sizes of the first call; with"
    " specialize=True, sizes that recur get a program of their own"
)
Strides = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class CompiledGraph:
    """A compiled graph: as a callable, and as data if it consists of data.

    `tangents` are there to compile a backward again for gradients with other strides.
    """

    run: CompiledPlan
    artifact: Artifact | None = None
    tangents: TangentLayouts | None = None


def compile_graph(
    graph: AtenGraph, context: CompileContext, notes: tuple[str, ...] = ()
) -> CompiledGraph:
    """Compile an ATen graph; PyTorch runs the whole graph if that fails.

    PyTorch also runs calls whose result has a size that depends on data, between compiled parts.
    """
    gm, phase = remove_effect_tokens(graph.gm), graph.phase
    try:
        split = split_data_dependent(gm)
        if split is not None:
            return CompiledGraph(_compile_parts(split, phase, context, notes))
        captured = convert(gm, phase, context.claims, graph.memory, notes)
        if captured.symbols:
            captured = replace(captured, notes=(*captured.notes, SYMBOLIC_SIZES_NOTE))
        run, artifact = compile_captured(captured, phase, context)
        tangents = find_tangent_layouts(captured) if phase == "backward" else None
        if tangents is None or not tangents.expected:
            return CompiledGraph(run, artifact)
        run = specialize_strides(run, tangents.expected, lambda: tangents, context)
        return CompiledGraph(run, artifact, tangents)
    except CaptureError as e:
        context.program.add_eager_graph(f"PyTorch runs the whole graph: {e}")
        context.report(GraphReport(phase, notes=(f"PyTorch runs the whole graph: {e}",)))
    except Exception as error:
        context.fall_back(error, gm)
    return CompiledGraph(eager_graph_callable(gm))


def _compile_parts(
    split: SplitGraph, phase: str, context: CompileContext, notes: tuple[str, ...]
) -> CompiledPlan:
    """Compile the parts of a split graph; return a callable that runs all of it."""
    notes = (*notes, split.note)
    context.program.pure = False
    context.program.has_fixed_bits.append(False)
    if not split.parts:
        context.report(GraphReport(phase, notes=notes))
    for call, part in split.parts:
        call.target = compile_graph(AtenGraph(part, phase, None), context, notes).run
        notes = ()
    return eager_graph_callable(split.outer, [call for call, _ in split.parts])


def load_graph(run: CompiledPlan, artifact: Artifact, context: CompileContext) -> CompiledGraph:
    """Return a graph that was kept on disk, with variants if it is a backward."""
    if artifact.plan.name != "backward":
        context.program.predictions.append(artifact.prediction)
    if artifact.tangent_strides is None:
        return CompiledGraph(run, artifact)
    layouts = partial(pickle.loads, artifact.tangent_layouts)
    return CompiledGraph(specialize_strides(run, artifact.tangent_strides, layouts, context))


def specialize_strides(
    run: CompiledPlan,
    expected: Mapping[int, Strides],
    tangents: Callable[[], TangentLayouts],
    context: CompileContext,
) -> CompiledPlan:
    """Return a backward that is compiled again for gradients with other strides, four at most.

    `expected` has the strides for which `run` was compiled, by argument; it copies arguments that
    have others. The first call with other strides compiles, so that all have the same bits.
    """

    def strides_of(args: list[object]) -> tuple[Strides, ...] | None:
        for k, strides in expected.items():
            if args[k].stride() != strides:  # type: ignore[attr-defined]  # they are tensors
                break
        else:
            return None
        found = tuple(_significant_strides(args[k], s) for k, s in expected.items())
        return None if found == tuple(expected.values()) else found

    def make(args: list[object]) -> tuple[CompiledPlan, str]:
        strides = dict(zip(expected, strides_of(args) or (), strict=True))
        try:
            captured = tangents().with_strides(strides)
            unreported = replace(context, sink=discard_report)
            variant, _ = compile_captured(captured, "backward", unreported)
        except Exception as error:
            context.raise_if_fatal(error)
            message = f"tofuse copies gradients to other strides: {error}"
            warnings.warn(message, TofuseWarning, stacklevel=2)
            return run, f"gradients are copied to other strides: {error}"
        return variant, f"gradients have the strides {', '.join(map(str, strides.values()))}"

    dispatcher = Dispatcher(run, context.report_variant)
    dispatcher.specialize(strides_of, make, NEW_KEY)
    return dispatcher


def _significant_strides(tensor: object, expected: Strides) -> Strides:
    """Return the strides, with the expected stride for extents of 1: it does not matter there."""
    assert isinstance(tensor, Tensor)
    if not tensor.numel():
        return expected  # a stride of 0 would read an element that is not there
    triples = zip(tensor.shape, tensor.stride(), expected, strict=True)
    return tuple(e if n == 1 else s for n, s, e in triples)


def compile_text(text: str, config: Config, sink: ReportSink = discard_report) -> CompiledPlan:
    """Return a callable for the text of a graph.

    It takes one list: the inputs, then the symbolic sizes in the order of their names.
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
    return compile_captured(captured, graph.name, make_context(config, sink))[0]
