"""Legality of side effects in the backward of an `autograd.Function`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.aliases import storage_ids, written_nodes, written_storages
from tofuse.capture.fx.subgraphs import (
    AUTOGRAD_FUNCTION_CALL,
    FunctionBodies,
    function_bodies,
    nodes_of_all_graphs,
    subgraph,
)
from tofuse.torch_internals.trees import tree_leaves


def backward_effects_reason(gm: GraphModule) -> str | None:
    """Return why PyTorch must run the effects of a program's backward; None if it need not.

    A compiled backward is functional: it has values, not memory. It runs as a whole, whichever
    results have gradients.
    """
    writers: list[Node] = []
    written, checked, attributes = set[int](), set[int](), set[int]()
    for node in gm.graph.nodes:
        for bodies in _functions_in(node):
            saved = [storage_ids([n]) for n in bodies.saved]
            here = set[int]().union(*saved) & written_storages(bodies.backward.graph)
            written |= here
            writers += [node] if here else []
            for k, storages in enumerate(saved):
                (checked if k in bodies.checked else attributes).update(storages)
    if written - storage_ids(n for n in gm.graph.nodes if n.op in ("placeholder", "get_attr")):
        return "its backward writes into a tensor that its forward computes"
    if written & checked & attributes:
        return "its backward writes into a saved tensor that is an attribute of `ctx`, too"
    if any(_may_be_saved(n, written) for n in nodes_of_all_graphs(gm.graph)):
        return "its backward writes into a tensor that another operator may have saved"
    if not all(_reaches_all_or_no_results(gm, node) for node in writers):
        return "its backward writes only if some of its results have gradients"
    return None


def _functions_in(node: Node) -> Iterator[FunctionBodies]:
    """Yield the autograd Functions that a node of Dynamo's program calls."""
    inner = (subgraph(n) for n in node.all_input_nodes)
    nodes = (n for gm in inner if gm is not None for n in nodes_of_all_graphs(gm.graph))
    for call in (node, *nodes):
        bodies = function_bodies(call)
        if bodies is not None:
            yield bodies


def _may_be_saved(node: Node, storages: set[int]) -> bool:
    """Whether autograd may save one of the storages for the backward of an operator."""
    is_operator = (
        node.op in ("call_function", "call_method") and node.target is not AUTOGRAD_FUNCTION_CALL
    )
    return (
        is_operator and _requires_grad(node) and bool(storages & storage_ids(node.all_input_nodes))
    )


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
