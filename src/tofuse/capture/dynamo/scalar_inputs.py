"""Scalars of tensor arguments that are sizes, such as in `torch.arange(lengths.max())`, as inputs.

Dynamo knows the number that an argument holds, but AOTAutograd does not. So the number becomes one
more argument of the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument, map_arg

from tofuse.capture.aot.boxed import CompiledFunction
from tofuse.capture.fx.node_tensors import example_tensor, symbolic_item
from tofuse.torch_internals.dynamo import LocalSource, set_source
from tofuse.torch_internals.fake_tensors import DataDependentOutputException, FakeTensor
from tofuse.torch_internals.symbolic_shapes import discard_new_symbols


def add_scalar_inputs(
    gm: GraphModule, inputs: Sequence[object]
) -> tuple[GraphModule, Sequence[object], list[int]]:
    """Return the program and its inputs with such scalars as additional arguments.

    Also return the positions of the tensors that hold them.
    """
    arguments = gm.graph.find_nodes(op="placeholder")
    readers = {n: [u for u in n.users if _reads_scalar(u, n)] for n in arguments}
    readers = {n: calls for n, calls in readers.items() if calls}
    if not readers:
        return gm, inputs, []
    copy = GraphModule(gm, _add_scalar_inputs(gm.graph, readers))
    return copy, [*inputs, *map(symbolic_item, readers)], [arguments.index(n) for n in readers]


def read_scalars(run: CompiledFunction, positions: Sequence[int]) -> CompiledFunction:
    """Return `run`, called with the scalars in the arguments at these positions, too."""
    if not positions:
        return run

    def call(*args: object) -> object:
        tensors = [args[k] for k in positions]
        return run(*args, *[t.item() for t in tensors if isinstance(t, torch.Tensor)])

    return call


def _add_scalar_inputs(graph: Graph, readers: Mapping[Node, Sequence[Node]]) -> Graph:
    """Return a copy of `graph` whose last arguments are the scalars that `readers` read.

    Dynamo reads its own graph again, so that must not change.
    """
    copy, copied = Graph(), dict[Node, Node]()
    copy.output(copy.graph_copy(graph, copied))
    for argument, calls in readers.items():
        last = copy.find_nodes(op="placeholder")[-1]
        with copy.inserting_after(last):
            scalar = copy.placeholder(f"{argument.name}_number")
        scalar.meta = {"example_value": symbolic_item(argument)}
        set_source(scalar, LocalSource(scalar.name))
        for call in calls:
            copied[call].replace_input_with(copied[argument], scalar)
    return copy


def _reads_scalar(call: Node, argument: Node) -> bool:
    """Return whether `call` needs the number in `argument`: it fails on a tensor without one."""

    def without_item(node: Node) -> Argument:
        value: Argument = node.meta.get("example_value")
        return torch.empty_like(value) if isinstance(value, torch.Tensor) else value

    tensor = example_tensor(argument)
    if not isinstance(symbolic_item(argument), torch.SymInt) or not isinstance(tensor, FakeTensor):
        return False
    try:
        with discard_new_symbols(tensor.fake_mode):
            args, kwargs = map_arg((call.args, call.kwargs), without_item)
            if isinstance(call.target, str):
                getattr(args[0], call.target)(*args[1:], **kwargs)
            else:
                call.target(*args, **kwargs)
    except DataDependentOutputException:
        return True
    except Exception:
        return False  # the call fails for another reason
    return False
