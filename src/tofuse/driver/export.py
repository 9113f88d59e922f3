"""Export a function or module: capture it with torch.export, and write its compiled programs."""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.export import ExportedProgram

from tofuse.backends.cpu.llvm.collect_code import CollectedCode
from tofuse.backends.cpu.llvm.machine_code import digest
from tofuse.backends.cpu.llvm.parallel_driver import PARALLEL_DRIVER
from tofuse.backends.cpu.processors import PROCESSORS, exported_levels, is_arm
from tofuse.cache.artifact import Artifact
from tofuse.capture.aot.aot_graphs import NO_VIEW, AOTGraphs, AtenGraph
from tofuse.capture.aot.boxed import BoxedFunction
from tofuse.config import Config
from tofuse.driver.compile_graph import compile_graph, recomputable_finder
from tofuse.driver.compile_program import trace_graphs
from tofuse.driver.context import CompileContext, make_context
from tofuse.driver.flat_program import FlatProgram, flat_program
from tofuse.driver.pipeline import run_traced_passes
from tofuse.driver.size_one import Arguments, arguments_of_size_one, automatic_shapes
from tofuse.errors import OptionError, UnsupportedError, first_line
from tofuse.gc_pause import pause_gc
from tofuse.ir.runtime_kind import RuntimeKind
from tofuse.runtime.autograd_program import make_program
from tofuse.runtime.program_file import (
    ExportedCode,
    ExportedGraph,
    ProgramFile,
    Sizes,
    save_program,
)
from tofuse.torch_internals.autograd_compiler import TracingContext, tracing
from tofuse.torch_internals.dynamo import compile_lock, compiling_session
from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.trees import tree_to_text

log = logging.getLogger(__name__)
Dynamic = bool | Mapping[str, object] | Sequence[object] | None


def export_program(
    target: Callable[..., object] | ExportedProgram,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    path: Path,
    *,
    dynamic: Dynamic,
    backward: bool,
    processors: Sequence[str],
    config: Config,
) -> None:
    """Write the file of a program; raise UnsupportedError if it cannot be one."""
    for name in processors:
        if name not in PROCESSORS:
            known = ", ".join(PROCESSORS)
            raise OptionError(f"there is no processor {name!r} to export for; there are {known}")
    settings = _Settings(
        getattr(target, "__name__", type(target).__name__), backward, tuple(processors), config
    )
    arguments: Arguments = (tuple(args), kwargs)
    shapes: object = dynamic or None
    if isinstance(target, ExportedProgram):
        arguments = arguments if args or kwargs else target.example_inputs or arguments
        exported, target = target, target.module()
    else:
        shapes = automatic_shapes(arguments) if dynamic is True else shapes
        exported = _capture(target, arguments, shapes)
    tensors: dict[str, torch.Tensor] = {}
    program, sizes = _compile_program(exported, arguments, settings, tensors)
    may_be_one = [s for s, (least, _) in sizes.items() if least <= 1 or dynamic is True]
    others: list[ProgramFile] = []
    for of_size_one, varying in arguments_of_size_one(
        program.inputs, program.sizes, may_be_one, arguments
    ):
        added = dict(tensors)
        try:
            exported = _capture(target, of_size_one, varying)
            others.append(_compile_program(exported, of_size_one, settings, added)[0])
        except Exception as error:  # of the user's program, too; a call of it is one clear error
            log.info("no program for a size of 1: %s", first_line(error))
        else:
            tensors = added
    save_program(path, replace(program, of_size_one=tuple(others)), tensors)


@dataclass(frozen=True)
class _Settings:
    """What all programs of an export have in common."""

    name: str
    backward: bool
    processors: tuple[str, ...]
    config: Config


def _compile_program(
    exported: ExportedProgram,
    arguments: Arguments,
    settings: _Settings,
    tensors: dict[str, torch.Tensor],
) -> tuple[ProgramFile, Sizes]:
    """Return a compiled program for sizes from 2 on, and the limits that torch.export has.

    Add its state and constants to the tensors.
    """
    flat = flat_program(exported, arguments, settings.backward, tensors)
    with (
        compile_lock,
        compiling_session(),
        pause_gc(),
        torch.set_grad_enabled(settings.backward),
    ):
        kind, graphs = _trace(flat, make_context(settings.config), settings.backward)
        code = {p: _compile(graphs, p, settings.config, tensors) for p in settings.processors}
    program = ProgramFile(
        settings.name,
        torch.__version__,
        tree_to_text(exported.call_spec.in_spec),
        tuple(exported.call_spec.in_spec.children()[1].context or ()),
        tree_to_text(exported.call_spec.out_spec),
        flat.inputs,
        flat.state,
        flat.results,
        {s: (max(2, least), most) for s, (least, most) in flat.sizes.items()},
        kind,
        digest(PARALLEL_DRIVER),
        code,
    )
    return program, flat.sizes


def architecture_processors() -> tuple[str, ...]:
    """Return the names of the processors of this machine's architecture."""
    return exported_levels(is_arm())[::-1]


def _capture(
    target: Callable[..., object], arguments: Arguments, shapes: object
) -> ExportedProgram:
    """Return torch's export of the target; torch's errors name what it cannot capture."""
    module = target if isinstance(target, torch.nn.Module) else _as_module(target)
    args, kwargs = arguments
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constants that the program has as attributes
        return torch.export.export(
            module,
            tuple(args),
            dict(kwargs),
            dynamic_shapes=shapes,  # type: ignore[arg-type]  # as its documentation says
            strict=False,
        )


def _as_module(function: Callable[..., object]) -> torch.nn.Module:
    """Return a module that calls a function, with its signature."""
    module = torch.nn.Module()

    def forward(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    with suppress(ValueError):  # a built-in function has none
        inspect.signature(function)
        functools.update_wrapper(forward, function)
    module.forward = forward
    return module


def _trace(
    flat: FlatProgram, context: CompileContext, backward: bool
) -> tuple[RuntimeKind, AOTGraphs]:
    """Return AOTAutograd's graphs, and how the program runs on them.

    Results that are views of arguments, or arguments, become copies.
    """
    kind, graphs = _trace_once(flat, context, backward)
    if kind is None and graphs.metadata is not None:
        views = [o.output_type not in NO_VIEW for o in graphs.metadata.output_info]
        (output,) = flat.gm.graph.find_nodes(op="output")
        with flat.gm.graph.inserting_before(output):
            copies = tuple(
                flat.gm.graph.call_function(torch.ops.aten.clone.default, (node,)) if v else node
                for node, v in zip(output.args[0], views, strict=True)
            )
        output.args = (copies,)
        flat.gm.recompile()
        kind, graphs = _trace_once(flat, context, backward)
    written = [] if graphs.metadata is None else graphs.metadata.input_info[len(flat.used) :]
    if any(i.mutates_data or i.mutates_metadata for i in written):
        raise UnsupportedError("a program that writes into its arguments has no file")
    if kind is None:
        raise UnsupportedError(
            "this program has no file: it needs wrappers of AOTAutograd, as for autocast, for "
            "arguments that are written, or for parameters without a gradient; export it in eval "
            "mode, or without backward"
        )
    return kind, graphs


def _trace_once(
    flat: FlatProgram, context: CompileContext, backward: bool
) -> tuple[RuntimeKind | None, AOTGraphs]:
    passes = functools.partial(run_traced_passes, claims=context.claims)
    budget = context.config.memory_budget
    recomputable = recomputable_finder(context)
    graphs = AOTGraphs(passes, _never_compiled, make_program, budget, not backward, recomputable)
    fake = next((x for x in flat.examples if isinstance(x, FakeTensor)), None)
    if fake is None:
        raise UnsupportedError("a program without tensors among its arguments has no file")
    guards = fake.fake_mode.shape_env.guards if fake.fake_mode.shape_env else []
    known = {str(g.expr) for g in guards}
    with tracing(TracingContext(fake.fake_mode)):
        trace_graphs(flat.gm, flat.examples, graphs, context)
    new = sorted({str(g.expr) for g in guards} - known)
    if new:
        raise UnsupportedError(f"this program has no file: it assumes of sizes {', '.join(new)}")
    return graphs.runtime_kind(flat.examples, views=False), graphs


def _never_compiled(graph: AtenGraph, args: Sequence[object]) -> BoxedFunction:
    raise AssertionError("an exported graph is compiled for each processor")


def _compile(
    graphs: AOTGraphs, processor: str, config: Config, tensors: dict[str, torch.Tensor]
) -> ExportedCode:
    """Compile the graphs for a processor; add their constants to the tensors."""
    code = CollectedCode(PROCESSORS[processor])
    context = replace(make_context(config), target=code.processor.target, library=code)
    traced = [graphs.forward().graph]
    if graphs.partitioned is not None:
        traced.append(graphs.backward().graph)
    exported: list[ExportedGraph] = []
    for graph in traced:
        compiled = compile_graph(graph, context)
        artifact = compiled.artifact
        if artifact is None:
            reports = compiled.findings.reports
            notes = "; ".join(note for report in reports for note in report.notes)
            raise UnsupportedError(f"this program has no file: PyTorch runs a part of it: {notes}")
        exported.append(_exported_graph(artifact, tensors))
    return ExportedCode(tuple(exported), code.image())


def _exported_graph(artifact: Artifact, tensors: dict[str, torch.Tensor]) -> ExportedGraph:
    keys: list[str] = []
    for constant in artifact.constants:
        if isinstance(constant, FakeTensor):
            raise UnsupportedError("this program has no file: it holds a tensor without memory")
        key = next(
            (k for k, t in tensors.items() if t is constant), f"tofuse.constant.{len(tensors)}"
        )
        tensors[key] = constant
        keys.append(key)
    return ExportedGraph(artifact.plan, artifact.codes, tuple(keys))
