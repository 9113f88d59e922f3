"""Phases of a joint graph: which nodes belong to the backward, and which may not run before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.fx import GraphModule, Node

from tofuse.analysis.reachability import reachable
from tofuse.capture.fx.aliases import base_node, has_side_effect, is_random, viewed_node
from tofuse.torch_internals.trees import tree_leaves

BACKWARD_TAG = "is_backward"  # AOTAutograd's tag of what it records in the backward
BACKWARD_TAGS = (BACKWARD_TAG, "must_be_in_backward")  # the latter for a write of the backward


def is_tangent(node: Node) -> bool:
    """Whether a node is the gradient of a result, which the backward receives."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def traced_in_backward(node: Node) -> bool:
    """Whether autograd made a call in the backward when it was traced."""
    return node.op == "call_function" and node.meta.get("partitioner_tag") in BACKWARD_TAGS


def backward_nodes(order: Sequence[Node]) -> set[Node]:
    """Return the nodes that autograd's backward computes, or that depend on a tangent."""
    return with_dependents(n for n in order if is_tangent(n) or traced_in_backward(n))


def backward_only_nodes(order: Sequence[Node]) -> set[Node]:
    """Return the nodes that may not run before the backward.

    These are tangents, the backward's side effects and random draws, what the backward reads of
    arguments that it writes, and whatever depends on one of them. A backward that runs twice finds
    in such an argument what the first run wrote.
    """
    written = written_in_backward(order)

    def is_late(n: Node) -> bool:
        return is_tangent(n) or (
            traced_in_backward(n)
            and (has_side_effect(n) or is_random(n) or reads_memory_of(n, written))
        )

    return with_dependents(filter(is_late, order))


def written_in_backward(order: Iterable[Node]) -> frozenset[Node]:
    """Return the arguments of the forward that the backward writes into."""
    return written_placeholders(filter(traced_in_backward, order))


def written_placeholders(order: Iterable[Node]) -> frozenset[Node]:
    """Return the arguments into which AOTAutograd's calls of `copy_` write."""
    targets = (n.args[0] for n in order if n.target is COPY_INTO)
    return frozenset(base_node(n) for n in targets if isinstance(n, Node))


def propagate_version_checks(order: Iterable[Node], arguments: frozenset[Node]) -> None:
    """Mark arguments that autograd does not check for writes: `ctx` has a view as an attribute."""
    for n in order:
        if n.meta.get(NO_VERSION_CHECK) and (base := base_node(n)) in arguments:
            base.meta[NO_VERSION_CHECK] = True


def reads_memory_of(node: Node, arguments: frozenset[Node]) -> bool:
    """Whether a call reads elements of one of the arguments; a view reads none."""
    if not arguments or viewed_node(node) is not None:
        return False
    return any(base_node(i) in arguments for i in node.all_input_nodes)


def forward_needs_backward(joint: GraphModule, num_fwd_outputs: int) -> bool:
    """Whether a result of the forward depends on a write or another call of the backward.

    Only the last value of a written tensor is in a joint graph. If the backward writes into a
    result, or into an argument that the forward writes, its value before the backward is missing.
    """
    results = tree_leaves(joint.graph.output_node().args)[:num_fwd_outputs]
    return any(map(traced_in_backward, with_operands(n for n in results if isinstance(n, Node))))


def with_operands(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes and all that they depend on."""
    return set(reachable(nodes, lambda n: n.all_input_nodes))


def with_dependents(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes and the calls that depend on one of them."""
    return set(reachable(nodes, lambda n: [user for user in n.users if user.op != "output"]))


NO_VERSION_CHECK = "saved_tensor_with_no_vc_check"  # in the meta of an attribute of `ctx`
COPY_INTO = torch.ops.aten.copy_.default
