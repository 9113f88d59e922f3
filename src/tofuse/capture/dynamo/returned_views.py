"""Returned views of written arguments, which the program's own calls make after it has run.

AOTAutograd makes such a view, if its sizes are symbolic, with the strides and the offset that the
compiled result has: in new memory. A view of an argument with an offset would be elsewhere. And it
makes two tensors of one that is returned twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from tofuse.capture.fx.aliases import (
    METADATA_WRITERS,
    storage_id,
    storage_ids,
    written_nodes,
    written_storages,
)
from tofuse.capture.fx.node_tensors import example_tensor, target_name
from tofuse.torch_internals.trees import tree_leaves

INPUTS = ("placeholder", "get_attr")
CALLS = ("call_function", "call_method")
Program = Callable[..., object]


@dataclass(frozen=True, eq=False)
class ReturnedViews:
    """A program of Dynamo without some results, and a program that makes these by views.

    Both take the arguments of the whole program. `positions` are those of the views in its results.
    """

    program: GraphModule
    views: GraphModule
    positions: tuple[int, ...]

    def bind(self, compiled: Program) -> Program:
        """Return the whole program, for the compiled `program`."""
        make_views, positions = self.views.forward, self.positions

        def run(*args: object) -> list[object]:
            results = list(compiled(*args))  # type: ignore[call-overload]  # a sequence
            for k, view in zip(positions, make_views(*args), strict=True):
                results.insert(k, view)
            return results

        return run


def split_returned_views(gm: GraphModule) -> ReturnedViews | None:
    """Take returned views of written arguments out of a program; None if there are none.

    A program with `cannot_be_made` must not be compiled.
    """
    views = _returned_views(gm)
    chains = {k: chain for k, node in views.items() if (chain := _chain(node)) is not None}
    if not chains:
        return None
    (returned,) = gm.graph.output_node().args
    assert isinstance(returned, (list, tuple))
    rest = tuple(node for k, node in enumerate(returned) if k not in chains)
    needed = {node for chain in chains.values() for node in chain}
    program = _with_results(gm, rest, lambda node: True)
    made = _with_results(gm, tuple(views[k] for k in chains), needed.__contains__)
    return ReturnedViews(program, made, tuple(chains))


def cannot_be_made(gm: GraphModule) -> bool:
    """Return whether a view of symbolic sizes, which AOTAutograd may get wrong, stays in."""
    return any(_is_symbolic(node) and _chain(node) is None for node in _returned_views(gm).values())


def _is_symbolic(view: Node) -> bool:
    t = example_tensor(view)
    sizes: tuple[int | torch.SymInt, ...] = () if t is None else (*t.shape, *t.stride())
    return not all(isinstance(n, int) for n in sizes)


def _returned_views(gm: GraphModule) -> dict[int, Node]:
    """Return the results that are views of arguments that are written, by position."""
    inputs = [n for n in gm.graph.nodes if n.op in INPUTS]
    written = storage_ids(inputs) & written_storages(gm.graph)
    (returned,) = gm.graph.output_node().args
    if not written or not isinstance(returned, (list, tuple)):
        return {}
    found = {}
    for k, node in enumerate(returned):
        view = example_tensor(node)
        if view is not None and node.op not in INPUTS and storage_id(view) in written:
            found[k] = node
    return found


def _chain(node: Node) -> frozenset[Node] | None:
    """Return the nodes that a view of an argument is made of; None if it needs more than views.

    Writes in place are passed by: after the program, the argument has their values. Modes of
    autograd at the time of the view are not repeated, so that one that records no gradient counts.
    """
    names = {target_name(n.target) for n in node.graph.nodes if n.op in CALLS}
    if not names.isdisjoint(METADATA_WRITERS):
        return None
    changes_mode = "_set_grad_enabled" in names
    found: set[Node] = set()
    worklist = [node]
    while worklist:
        node = worklist.pop()
        if node in found:
            continue
        found.add(node)
        if node.op in INPUTS:
            value = example_tensor(node)
            if changes_mode and value is not None and value.requires_grad:
                return None
            continue
        operands, storages = node.all_input_nodes, _storages(node)
        if node.op not in CALLS or storages is None:
            return None
        if storages:
            viewed = node.args[0] if node.args else None
            if not isinstance(viewed, Node) or not storages <= (_storages(viewed) or set()):
                return None
            if written_nodes(node):
                operands = [viewed]  # not what is written
        worklist += operands
    return frozenset(found)


def _storages(node: Node) -> set[int] | None:
    """Return the storages of the tensors that a node gives; None if it gives other objects."""
    values = tree_leaves(node.meta.get("example_value"))
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    numbers = [x for x in values if isinstance(x, (int, torch.SymInt))]
    if len(tensors) + len(numbers) < len(values) or not values:
        return None
    return {storage_id(t) for t in tensors}


def _with_results(
    gm: GraphModule, results: tuple[Node, ...], is_needed: Callable[[Node], bool]
) -> GraphModule:
    """Return a program with other results; of the nodes, only inputs and needed ones.

    Without writes if not all are needed.
    """
    graph = Graph()
    copies: dict[Node, Node] = {}
    everything = is_needed(gm.graph.output_node())
    for node in gm.graph.nodes:
        if node.op == "output":
            break
        if not everything and is_needed(node) and written_nodes(node):
            copies[node] = copies[node.args[0]]
        elif node.op == "placeholder" or is_needed(node):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] if isinstance(n, Node) else n for n in results))
    copy = GraphModule(gm, graph)
    copy.meta.update(gm.meta)
    return copy
