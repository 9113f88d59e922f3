"""Legality of side effects in the backward of an `autograd.Function`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.aliases import storage_ids, written_nodes, written_storages
from tofuse.capture.fx.subgraphs import nodes_of_all_graphs, subgraph
from tofuse.torch_internals.trees import tree_leaves

APPLY = torch.ops.higher_order.autograd_function_apply


def backward_effects_reason(gm: GraphModule) -> str | None:
    """Return why PyTorch must run the effects of a program's backward; None if it need not.

    A compiled backward has values where eager has memory, and it is one function: all of it runs,
    whichever results have gradients.
    """
    writers: list[Node] = []
    arguments = storage_ids(n for n in gm.graph.nodes if n.op in ("placeholder", "get_attr"))
    for node in gm.graph.nodes:
        for call in _calls_of_functions(node):
            written = _written_in_backward(call)
            if written - arguments:
                return "its backward writes into a tensor that its forward computes"
            if written:
                writers.append(node)
    if writers and not all(_reaches_all_or_no_results(gm, node) for node in writers):
        return "its backward writes only if some of its results have gradients"
    return None


def _calls_of_functions(node: Node) -> Iterator[Node]:
    """Yield the calls of `autograd.Function` in a node of Dynamo's program."""
    if node.target is APPLY:
        yield node
    for inner in filter(None, map(subgraph, node.all_input_nodes)):
        yield from (n for n in nodes_of_all_graphs(inner.graph) if n.target is APPLY)


def _written_in_backward(call: Node) -> set[int]:
    """Return the storages of the forward into which the backward of a function writes.

    Its arguments are the gradients, then what the forward has saved.
    """
    forward, backward = map(subgraph, call.args[:2])
    if forward is None or backward is None:
        return set()
    (returned,) = forward.graph.output_node().args
    assert isinstance(returned, (list, tuple))  # results, saved tensors
    count = len(tree_leaves(returned[1]))
    arguments = backward.graph.find_nodes(op="placeholder")
    return storage_ids(arguments[len(arguments) - count :]) & written_storages(backward.graph)


def _reaches_all_or_no_results(gm: GraphModule, call: Node) -> bool:
    """Whether a backward from each result, or from none, runs the backward of a call.

    Calls lead to one another if their values require grad. A call that writes a tensor leads to the
    tensor's later readers.
    """
    reached = {call}
    for node in gm.graph.nodes:
        if not reached.isdisjoint(node.all_input_nodes) and _requires_grad(node):
            reached |= {node, *written_nodes(node)}
    results = [n for n in gm.graph.output_node().all_input_nodes if _requires_grad(n)]
    return len({n in reached for n in results}) <= 1


def _requires_grad(node: Node) -> bool:
    values = tree_leaves(node.meta.get("example_value"))
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in values)
