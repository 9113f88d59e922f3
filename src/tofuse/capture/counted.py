"""Tensors whose sizes are numbers that tensors hold, such as `torch.arange(lengths.max())`.

Dynamo knows the number of an argument, and AOTAutograd does not: such a tensor is made before the
program, and is one more argument of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._dynamo.source import LocalSource
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from tofuse.capture.programs import Run, tensor_of

Backend = Callable[[GraphModule, Sequence[object]], Run]


def counted_first(backend: Backend) -> Backend:
    """`backend`, which sees no call that makes such a tensor."""

    def run_first(gm: GraphModule, inputs: Sequence[object]) -> Run:
        calls = [n for n in gm.graph.nodes if _counts(n)]
        if not calls:
            return backend(gm, inputs)
        made = [tensor_of(n) for n in calls]
        run = backend(GraphModule(gm, _without(gm.graph, calls)), [*inputs, *made])
        arguments = gm.graph.find_nodes(op="placeholder")

        def whole(*args: object) -> object:
            known = dict(zip(arguments, args, strict=True))
            given = [(map_arg((n.args, n.kwargs), known.__getitem__), n.target) for n in calls]
            return run(*args, *[make(*a, **k) for (a, k), make in given])

        return whole

    return run_first


def _without(graph: Graph, calls: Sequence[Node]) -> Graph:
    """A copy, for Dynamo reads its own again: what is made by the calls is its last arguments."""
    copy, copied = Graph(), dict[Node, Node]()
    copy.output(copy.graph_copy(graph, copied))
    for call in calls:
        last = copy.find_nodes(op="placeholder")[-1]
        with copy.inserting_after(last):
            argument = copy.placeholder(call.name)
        argument.meta, argument._dynamo_source = dict(call.meta), LocalSource(call.name)
        copied[call].replace_all_uses_with(argument)
        copy.erase_node(copied[call])
    return copy


def _counts(node: Node) -> bool:
    """Whether it makes a tensor of arguments alone, one of which holds the number of its size."""
    made, read = tensor_of(node), node.all_input_nodes
    if node.op != "call_function" or made is None or any(n.op != "placeholder" for n in read):
        return False
    held = [t.item_memo for n in read if isinstance(t := tensor_of(n), FakeTensor)]
    numbers = {str(x) for x in held if isinstance(x, torch.SymInt)}
    return any(str(n) in numbers for n in made.shape)
