"""Export a function or module: capture it with torch.export, and write its compiled programs."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)
from torch.fx import GraphModule, Node

from tofuse.backends.llvm.collect_code import CollectedCode
from tofuse.backends.llvm.machine_code import digest
from tofuse.backends.llvm.parallel_driver import PARALLEL_DRIVER
from tofuse.backends.llvm.processor import PROCESSORS
from tofuse.cache.artifact import Artifact
from tofuse.capture.aot.aot_graphs import NO_VIEW, AOTGraphs, AtenGraph
from tofuse.capture.aot.boxed import BoxedFunction
from tofuse.config import Config
from tofuse.driver.compile_graph import compile_graph
from tofuse.driver.compile_program import trace_graphs
from tofuse.driver.context import CompileContext, make_context
from tofuse.driver.pipeline import run_traced_passes
from tofuse.errors import OptionError, UnsupportedError
from tofuse.gc_pause import pause_gc
from tofuse.ir.runtime_kind import RuntimeKind
from tofuse.report.model import GraphReport
from tofuse.runtime.autograd_program import make_program
from tofuse.runtime.loaded_program import host_processors
from tofuse.runtime.program_file import (
    Constant,
    ConstantInput,
    ExportedCode,
    ExportedGraph,
    ProgramFile,
    ResultIndex,
    StateTensor,
    TensorInput,
    save_program,
)
from tofuse.torch_internals.autograd_compiler import TracingContext, tracing
from tofuse.torch_internals.dynamo import compile_lock, compiling_session
from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.trees import tree_leaves, tree_to_text

Dynamic = bool | Mapping[str, object] | Sequence[object] | None
STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


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
    exported = _capture(target, args, kwargs, dynamic)
    flat = _flat_program(exported, args, kwargs, backward)
    with compile_lock, compiling_session(), pause_gc(), torch.set_grad_enabled(backward):
        kind, graphs = _trace(flat, make_context(config), backward)
        name = getattr(target, "__name__", type(target).__name__)
        tensors, code = dict(flat.tensors), {}
        for processor in processors:
            code[processor] = _compile(graphs, processor, config, tensors)
    keywords = tuple(exported.call_spec.in_spec.children()[1].context or ())
    program = ProgramFile(
        name,
        torch.__version__,
        tree_to_text(exported.call_spec.in_spec),
        keywords,
        tree_to_text(exported.call_spec.out_spec),
        flat.inputs,
        flat.state,
        flat.results,
        flat.sizes,
        kind,
        digest(PARALLEL_DRIVER),
        code,
    )
    save_program(path, program, tensors)


def architecture_processors() -> tuple[str, ...]:
    """Return the names of the processors of this machine's architecture."""
    own = host_processors()
    return own if own[:1] == ("neon",) else ("avx2", "avx512")


def _capture(
    target: Callable[..., object] | ExportedProgram,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    dynamic: Dynamic,
) -> ExportedProgram:
    """Return torch's export of the target; torch's errors name what it cannot capture."""
    if isinstance(target, ExportedProgram):
        return target
    module = target if isinstance(target, torch.nn.Module) else _as_module(target)
    shapes: object = dynamic or None
    if dynamic is True:
        shapes = ShapesCollection()
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.dim():
                shapes[leaf] = (Dim.AUTO,) * leaf.dim()
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


@dataclass(frozen=True, eq=False)
class _FlatProgram:
    """A program of torch.export on flat tensors: first those of the state, then the arguments.

    `examples` are fake tensors. `tensors` has the state by key.
    """

    gm: GraphModule
    examples: tuple[torch.Tensor, ...]
    state: tuple[StateTensor, ...]
    inputs: tuple[TensorInput | ConstantInput, ...]
    results: tuple[ResultIndex | Constant, ...]
    sizes: Mapping[str, tuple[int, int | None]]
    tensors: Mapping[str, torch.Tensor]

    @property
    def used(self) -> list[StateTensor]:
        """The state that the program takes as its first arguments."""
        return [x for x in self.state if x.used]


def _flat_program(
    exported: ExportedProgram, args: Sequence[object], kwargs: Mapping[str, object], backward: bool
) -> _FlatProgram:
    """Return the program without constants among its arguments and results."""
    gm = copy.deepcopy(exported.graph_module)
    placeholders = gm.graph.find_nodes(op="placeholder")
    leaves = iter(tree_leaves((tuple(args), dict(kwargs))))
    examples: list[torch.Tensor] = []
    state: list[StateTensor] = []
    inputs: list[TensorInput | ConstantInput] = []
    tensors: dict[str, torch.Tensor] = {}
    for spec, node in zip(exported.graph_signature.input_specs, placeholders, strict=True):
        fake = node.meta["val"]
        if spec.kind in STATE:
            found = _state_tensor(spec, exported, tensors, backward, used=bool(node.users))
            state.append(found)
            if found.used:
                examples.append(_example(fake, found.requires_grad))
            else:  # such as a weight that is tied to another
                gm.graph.erase_node(node)
            continue
        leaf = next(leaves, None)
        if spec.kind is not InputKind.USER_INPUT:
            raise UnsupportedError(f"a program with an argument of kind {spec.kind} has no file")
        if isinstance(spec.arg, ConstantArgument):
            inputs.append(_constant_input(spec.arg))
            gm.graph.erase_node(node)
            continue
        if not isinstance(spec.arg, TensorArgument):
            raise UnsupportedError(f"the argument {spec.arg.name} is no tensor and no constant")
        requires_grad = backward and isinstance(leaf, torch.Tensor) and leaf.requires_grad
        shape = tuple(_plain_size(n, spec.arg.name) for n in fake.shape)
        inputs.append(TensorInput(spec.arg.name, str(fake.dtype), shape, requires_grad))
        examples.append(_example(fake, requires_grad and bool(node.users)))
    results = _drop_constants(exported, gm)
    gm.recompile()
    limits = {
        str(s): (int(r.lower), _limit(r.upper)) for s, r in exported.range_constraints.items()
    }
    return _FlatProgram(gm, tuple(examples), tuple(state), tuple(inputs), results, limits, tensors)


def _plain_size(size: int | torch.SymInt, argument: str) -> int | str:
    """Return a number, or the name of a symbol; raise UnsupportedError for other sizes."""
    text = str(size)
    if text.isdigit():
        return int(text)
    if not text.isidentifier():
        raise UnsupportedError(f"a size of {argument} depends on another size: {text}")
    return text


def _limit(upper: object) -> int | None:
    """Return the largest size; None for torch's infinity."""
    number = int(str(upper)) if str(upper).isdigit() else UNLIMITED
    return None if number >= UNLIMITED else number


def _example(fake: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return a fake tensor that requires grad or not, apart from the exported program's."""
    return fake.detach().requires_grad_(requires_grad)


def _constant_input(argument: ConstantArgument) -> ConstantInput:
    value = argument.value
    if not isinstance(value, (bool, int, float, str, type(None))):
        raise UnsupportedError(
            f"the argument {argument.name} is a {type(value).__name__}, which a file cannot hold"
        )
    return ConstantInput(argument.name, value)


def _state_tensor(
    spec: InputSpec,
    exported: ExportedProgram,
    tensors: dict[str, torch.Tensor],
    backward: bool,
    *,
    used: bool,
) -> StateTensor:
    """Return a parameter, buffer or constant; add its tensor unless it is tied to another."""
    name = str(spec.target)
    tensor = exported.state_dict.get(name)
    tensor = exported.constants[name] if tensor is None else tensor
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
        raise UnsupportedError(f"{name} is no tensor on the CPU: only CPU programs have a file")
    key = next((key for key, t in tensors.items() if t is tensor), name)
    tensors[key] = tensor
    is_parameter = spec.kind is InputKind.PARAMETER
    persistent = bool(spec.persistent)  # constants are not
    requires_grad = backward and is_parameter and tensor.requires_grad
    return StateTensor(name, key, tensor.stride(), is_parameter, requires_grad, persistent, used)


def _drop_constants(
    exported: ExportedProgram, gm: GraphModule
) -> tuple[ResultIndex | Constant, ...]:
    """Remove constants from the graph's results; return what the program returns."""
    (output,) = gm.graph.find_nodes(op="output")
    kept: list[Node] = []
    results: list[ResultIndex | Constant] = []
    specs = exported.graph_signature.output_specs
    for spec, value in zip(specs, output.args[0], strict=True):
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise UnsupportedError(
                f"a program with a result of kind {spec.kind.name} has no file; export the program "
                "that torch.export.export returns, without run_decompositions()"
            )
        if isinstance(value, Node):
            results.append(ResultIndex(len(kept)))
            kept.append(value)
        elif isinstance(value, (bool, int, float, str, type(None))):
            results.append(value)
        else:
            raise UnsupportedError(f"the program returns a {type(value).__name__}")
    output.args = (tuple(kept),)
    return tuple(results)


def _trace(
    flat: _FlatProgram, context: CompileContext, backward: bool
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
    flat: _FlatProgram, context: CompileContext, backward: bool
) -> tuple[RuntimeKind | None, AOTGraphs]:
    passes = functools.partial(run_traced_passes, claims=context.claims)
    budget = context.config.memory_budget
    graphs = AOTGraphs(passes, _never_compiled, make_program, budget, not backward)
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


def _never_compiled(graph: AtenGraph) -> BoxedFunction:
    raise AssertionError("an exported graph is compiled for each processor")


def _compile(
    graphs: AOTGraphs, processor: str, config: Config, tensors: dict[str, torch.Tensor]
) -> ExportedCode:
    """Compile the graphs for a processor; add their constants to the tensors."""
    reports: list[GraphReport] = []
    code = CollectedCode(PROCESSORS[processor])
    context = replace(
        make_context(config, reports.append), target=code.processor.target, library=code
    )
    traced = [graphs.forward().graph]
    if graphs.partitioned is not None:
        traced.append(graphs.backward().graph)
    exported: list[ExportedGraph] = []
    for graph in traced:
        artifact = compile_graph(graph, context).artifact
        if artifact is None:
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


UNLIMITED = 1 << 62  # torch's int_oo and sys.maxsize are above
