"""A program of torch.export on flat tensors: first its state, then its arguments."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)
from torch.fx import GraphModule, Node

from tofuse.capture.fx.devices import on_host
from tofuse.driver.size_one import Arguments
from tofuse.errors import UnsupportedError
from tofuse.runtime.program_file import (
    Constant,
    ConstantInput,
    ResultIndex,
    Sizes,
    StateTensor,
    TensorInput,
)
from tofuse.torch_internals.trees import tree_leaves

STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True, eq=False)
class FlatProgram:
    """A program of torch.export on flat tensors: first those of the state, then the arguments.

    `examples` are fake tensors.
    """

    gm: GraphModule
    examples: tuple[torch.Tensor, ...]
    state: tuple[StateTensor, ...]
    inputs: tuple[TensorInput | ConstantInput, ...]
    results: tuple[ResultIndex | Constant, ...]
    sizes: Sizes

    @property
    def used(self) -> list[StateTensor]:
        """The state that the program takes as its first arguments."""
        return [x for x in self.state if x.used]


def flat_program(
    exported: ExportedProgram,
    arguments: Arguments,
    backward: bool,
    tensors: dict[str, torch.Tensor],
) -> FlatProgram:
    """Return the program without constants among its arguments and results; add its state."""
    gm = copy.deepcopy(exported.graph_module)
    placeholders = gm.graph.find_nodes(op="placeholder")
    leaves = iter(tree_leaves(arguments))
    examples: list[torch.Tensor] = []
    state: list[StateTensor] = []
    inputs: list[TensorInput | ConstantInput] = []
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
    varying = {n for x in inputs if isinstance(x, TensorInput) for n in x.shape}
    limits = {
        str(s): (int(r.lower), _limit(r.upper))
        for s, r in exported.range_constraints.items()
        if str(s) in varying
    }
    return FlatProgram(gm, tuple(examples), tuple(state), tuple(inputs), results, limits)


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
    number = int(str(upper)) if str(upper).isdigit() else LEAST_UNLIMITED_SIZE
    return None if number >= LEAST_UNLIMITED_SIZE else number


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
    if not isinstance(tensor, torch.Tensor) or not on_host(tensor):
        raise UnsupportedError(f"{name} is no tensor on the CPU: only CPU programs have a file")
    key = next((key for key, t in tensors.items() if t is tensor), name)
    is_constant = spec.kind is InputKind.CONSTANT_TENSOR
    if is_constant and not torch.equal(tensors.setdefault(key, tensor), tensor):
        name = key = f"{name}_{len(tensors)}"  # the program of other sizes has another constant
    tensors.setdefault(key, tensor)
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


LEAST_UNLIMITED_SIZE = 1 << 62  # torch's int_oo and sys.maxsize are above
