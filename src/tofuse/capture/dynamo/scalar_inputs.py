"""Sizes that are numbers which tensors hold, such as those of `torch.arange(lengths.max())`.

Dynamo knows the number of an argument, and AOTAutograd does not: the number is one more argument of
the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch._dynamo.source import LocalSource
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument, map_arg

from tofuse.capture.fx.node_tensors import tensor_of
from tofuse.torch_internals.torch_types import Backend, CompiledFunction


def counted_first(backend: Backend) -> Backend:
    """`backend`, which sees such numbers as arguments that are no tensors."""

    def run_first(gm: GraphModule, inputs: Sequence[object]) -> CompiledFunction:
        arguments = gm.graph.find_nodes(op="placeholder")
        readers = {n: [u for u in n.users if _reads_number(u, n)] for n in arguments}
        readers = {n: calls for n, calls in readers.items() if calls}
        if not readers:
            return backend(gm, inputs)
        counted = GraphModule(gm, _with_numbers(gm.graph, readers))
        run = backend(counted, [*inputs, *map(_number, readers)])
        places = [arguments.index(n) for n in readers]

        def whole(*args: object) -> object:
            tensors = [args[k] for k in places]
            return run(*args, *[t.item() for t in tensors if isinstance(t, torch.Tensor)])

        return whole

    return run_first


def _with_numbers(graph: Graph, readers: Mapping[Node, Sequence[Node]]) -> Graph:
    """A copy, for Dynamo reads its own again: the numbers that are read are its last arguments."""
    copy, copied = Graph(), dict[Node, Node]()
    copy.output(copy.graph_copy(graph, copied))
    for count, calls in readers.items():
        last = copy.find_nodes(op="placeholder")[-1]
        with copy.inserting_after(last):
            number = copy.placeholder(f"{count.name}_number")
        number.meta = {"example_value": _number(count)}
        number._dynamo_source = LocalSource(number.name)
        for call in calls:
            copied[call].replace_input_with(copied[count], number)
    return copy


def _number(node: Node) -> torch.SymInt | None:
    """What a tensor holds, where Dynamo knows it."""
    tensor = tensor_of(node)
    held = tensor.item_memo if isinstance(tensor, FakeTensor) else None
    return held if isinstance(held, torch.SymInt) else None


def _reads_number(call: Node, count: Node) -> bool:
    """Whether it needs the number itself: a tensor of which none is known does not do."""

    def stand_in(node: Node) -> Argument:
        value: Argument = node.meta.get("example_value")
        return torch.empty_like(value) if isinstance(value, torch.Tensor) else value

    tensor = tensor_of(count)
    if _number(count) is None or not isinstance(tensor, FakeTensor):
        return False
    try:
        with tensor.fake_mode:
            args, kwargs = map_arg((call.args, call.kwargs), stand_in)
            if isinstance(call.target, str):
                getattr(args[0], call.target)(*args[1:], **kwargs)
            else:
                call.target(*args, **kwargs)
    except DataDependentOutputException:
        return True
    except Exception:
        return False  # whatever it is, it is none of ours
    return False
