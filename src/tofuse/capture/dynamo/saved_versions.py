"""Checks that tensors which a program saves for its backward were not written meanwhile."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch.fx import Graph, GraphModule

from tofuse.capture.fx.subgraphs import (
    AUTOGRAD_FUNCTION_CALL,
    FunctionBodies,
    function_bodies,
    nodes_of_all_graphs,
    subgraph,
)
from tofuse.torch_internals.memory import tensor_version

CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: it was saved with `ctx.save_for_backward`"
)


def with_version_checks(gm: GraphModule) -> GraphModule:
    """Return a program whose `autograd.Function`s raise an error if a saved tensor was written.

    In eager, autograd checks this. Dynamo's program passes saved tensors on without the check.
    """
    if all(n.target is not AUTOGRAD_FUNCTION_CALL for n in nodes_of_all_graphs(gm.graph)):
        return gm
    return _with_version_checks(gm)


def _with_version_checks(gm: GraphModule) -> GraphModule:
    """Return a program, with the same attributes, whose Functions check their saved tensors."""
    graph: Graph = copy.deepcopy(gm.graph)
    made = GraphModule(gm, graph)
    for node in graph.find_nodes(op="get_attr"):
        inner = subgraph(node)
        if inner is not None:
            setattr(made, str(node.target), _with_version_checks(inner))
    for bodies in filter(None, map(function_bodies, graph.nodes)):
        if bodies.checked:
            _check_saved(bodies)
    return made


def _check_saved(bodies: FunctionBodies) -> None:
    """Let a forward save the versions of what it saves, and the backward compare them, in place."""
    forward, backward = bodies.forward, bodies.backward
    output = forward.graph.output_node()
    returned = output.args[0]
    assert isinstance(returned, (list, tuple))
    results, saved = returned
    assert isinstance(saved, (list, tuple))
    with forward.graph.inserting_before(output):
        versions = forward.graph.call_function(_versions, tuple(saved[k] for k in bodies.checked))
    output.args = ((results, (*saved, versions)),)
    last = backward.graph.find_nodes(op="placeholder")[-1]
    with backward.graph.inserting_after(last):
        expected = backward.graph.placeholder("versions")
    tensors = [bodies.saved[k] for k in bodies.checked]
    with backward.graph.inserting_after(expected):
        backward.graph.call_function(_check_versions, (expected, *tensors))
    for module in (forward, backward):
        module.recompile()


def _versions(*tensors: torch.Tensor) -> tuple[int, ...]:
    return tuple(map(tensor_version, tensors))


def _check_versions(expected: Sequence[int], *tensors: torch.Tensor) -> None:
    """Raise an error if one of the tensors was written since its version was taken."""
    if _versions(*tensors) != tuple(expected):
        raise RuntimeError(CHANGED)
