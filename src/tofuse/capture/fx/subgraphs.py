"""The programs inside a program: bodies of control flow, of checkpoints, of autograd Functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

AUTOGRAD_FUNCTION_CALL = torch.ops.higher_order.autograd_function_apply


@dataclass(frozen=True, eq=False)
class FunctionBodies:
    """The two programs of an `autograd.Function`.

    The forward returns its results and what it saves. The backward takes the gradients, then what
    is saved: `saved`. Autograd checks those at the positions `checked` for writes, because the
    function has passed them to `save_for_backward`.
    """

    forward: GraphModule
    backward: GraphModule
    saved: tuple[Node, ...]
    checked: tuple[int, ...]


def function_bodies(call: Node) -> FunctionBodies | None:
    """Return the programs of an `autograd.Function`; None if a node is no call of one."""
    if call.target is not AUTOGRAD_FUNCTION_CALL:
        return None
    forward, backward = map(subgraph, call.args[:2])
    assert forward is not None and backward is not None
    returned = forward.graph.output_node().args[0]
    assert isinstance(returned, (list, tuple))
    values, checked = returned[1], call.kwargs["saved_for_backward_idx"]
    assert isinstance(values, (list, tuple)) and isinstance(checked, (list, tuple))
    arguments: list[Node] = backward.graph.find_nodes(op="placeholder")
    saved = tuple(arguments[len(arguments) - len(values) :])
    return FunctionBodies(forward, backward, saved, tuple(k for k in checked if isinstance(k, int)))


def subgraph(node: object) -> GraphModule | None:
    """Return the program that a `get_attr` node reads; None for other nodes."""
    if not isinstance(node, Node) or node.op != "get_attr" or node.graph.owning_module is None:
        return None
    module = getattr(node.graph.owning_module, str(node.target), None)
    return module if isinstance(module, GraphModule) else None


def nodes_of_all_graphs(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph, and those of the programs inside it."""
    for node in graph.nodes:
        yield node
        inner = subgraph(node)
        if inner is not None:
            yield from nodes_of_all_graphs(inner.graph)
