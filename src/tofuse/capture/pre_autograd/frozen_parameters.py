"""Parameters that the user calls frozen, and calls of them alone.

The results of such calls are kept between calls of the program. They are computed again if a
parameter has another version, or other memory.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils.weak import WeakTensorKeyDictionary

from tofuse.capture.fx.aliases import storage_id, written_storages
from tofuse.capture.fx.node_tensors import example_tensor, requires_grad
from tofuse.torch_internals.dynamo import get_source, set_source, source_name
from tofuse.torch_internals.memory import tensor_version

Program = Callable[..., object]
F = TypeVar("F", bound=Callable[..., tuple[object, ...]])
TRAINED = "freeze=True changes nothing here: the program has a backward"
FROZEN_META_KEY = "tofuse_frozen"
MODULE_STATE_SOURCE_NAME = re.compile(r"\._(parameters|buffers)\[")
KEPT_CALLS: set[object] = set()


def kept_call(function: F) -> F:
    """Register a function of frozen parameters whose results, a tuple, are kept."""
    KEPT_CALLS.add(function)
    return function


def freeze_parameters(gm: GraphModule) -> tuple[str, ...]:
    """Mark the parameters and buffers of modules that a program does not write; return notes.

    A program with a backward has none.
    """
    if requires_grad(gm):
        return (TRAINED,)
    written = written_storages(gm.graph)
    for node in gm.graph.find_nodes(op="placeholder"):
        tensor, name = example_tensor(node), source_name(get_source(node))
        is_state = MODULE_STATE_SOURCE_NAME.search(name) or isinstance(tensor, torch.nn.Parameter)
        if tensor is not None and is_state and storage_id(tensor) not in written:
            node.meta[FROZEN_META_KEY] = True
    return ()


def is_frozen(argument: object) -> bool:
    """Return whether an argument of a call is a frozen parameter."""
    return isinstance(argument, Node) and FROZEN_META_KEY in argument.meta


@dataclass(frozen=True, eq=False)
class ParameterCalls:
    """A program without its kept calls, and a program that makes their results.

    The program takes the arguments at `taken`, and then the results of `calls`, which takes the
    parameters at `read`. `inputs` are example inputs of the program.
    """

    program: GraphModule
    inputs: tuple[object, ...]
    calls: GraphModule
    taken: tuple[int, ...]
    read: tuple[int, ...]

    def bind(self, compiled: Program) -> Program:
        """Return the whole program, for the compiled `program`.

        Results are kept for each first parameter, as long as it lives: several modules may share
        the program. The memory of all parameters is kept with them, so that no other tensor gets
        the same address.
        """
        taken, read = self.taken, self.read
        kept = WeakTensorKeyDictionary()

        def run(*args: object) -> object:
            parameters = [args[k] for k in read]
            state, results, _ = kept.get(parameters[0], (None, (), ()))
            current = _state(parameters)
            if current is None or state != current:
                results = self._results(parameters)
                memory = [p.detach() for p in parameters]  # type: ignore[attr-defined]  # tensors
                kept[parameters[0]] = current, results, memory
            return compiled(*[args[k] for k in taken], *results)

        return run

    def _results(self, parameters: Sequence[object]) -> Sequence[object]:
        with torch.inference_mode(False), torch.no_grad():
            results: Sequence[object] = self.calls.forward(*parameters)
            return results


def _state(parameters: Sequence[object]) -> list[int] | None:
    """Return numbers that change if a parameter is written, or has other memory.

    None if a tensor counts no writes, such as one made in inference mode.
    """
    try:
        return [*map(torch.Tensor.data_ptr, parameters), *map(tensor_version, parameters)]  # type: ignore[arg-type]
    except RuntimeError:
        return None


def split_parameter_calls(gm: GraphModule, inputs: Sequence[object]) -> ParameterCalls | None:
    """Separate the kept calls from a program; None if it has none."""
    kept = [n for n in gm.graph.nodes if n.target in KEPT_CALLS]
    if not kept:
        return None
    parts = [u for n in kept for u in n.users]
    assert all(n.target is operator.getitem for n in parts)
    arguments = gm.graph.find_nodes(op="placeholder")
    read = list(dict.fromkeys(x for n in kept for x in n.all_input_nodes))
    moved = {*kept, *parts}
    taken = [n for n in arguments if not n.users or not moved.issuperset(n.users)]
    position = {n: k for k, n in enumerate(arguments)}
    example_inputs = (
        *(inputs[position[n]] for n in taken),
        *(n.meta["example_value"] for n in parts),
    )
    program = GraphModule(gm, _program_graph(gm.graph, taken, parts, moved))
    program.meta.update(gm.meta)
    return ParameterCalls(
        program,
        example_inputs,
        GraphModule(torch.nn.Module(), _calls_graph(read, kept, parts)),
        tuple(position[n] for n in taken),
        tuple(position[n] for n in read),
    )


def _program_graph(
    graph: Graph, taken: Sequence[Node], parts: Sequence[Node], moved: set[Node]
) -> Graph:
    """Return a graph without the `moved` nodes; `parts` of them are arguments."""
    program, copies = Graph(), dict[Node, Node]()
    for node in taken:
        copies[node] = program.node_copy(node)
        if (source := get_source(node)) is not None:
            set_source(copies[node], source)
    for node in parts:
        copies[node] = program.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in graph.nodes:
        if node.op != "placeholder" and node not in moved:
            copies[node] = program.node_copy(node, copies.__getitem__)
    return program


def _calls_graph(read: Sequence[Node], kept: Sequence[Node], parts: Sequence[Node]) -> Graph:
    """Return a graph of the kept calls alone, which returns their parts."""
    calls, copies = Graph(), dict[Node, Node]()
    for node in read:
        copies[node] = calls.placeholder(node.name)
    for node in (*kept, *parts):
        copies[node] = calls.node_copy(node, copies.__getitem__)
    calls.output(tuple(copies[n] for n in parts))
    return calls
