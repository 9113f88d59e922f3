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
from tofuse.capture.fx.node_tensors import (
    example_tensor,
    has_symbolic_layout,
    target_name,
)
from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.trees import tree_leaves

INPUTS = ("placeholder", "get_attr")
CALLS = ("call_function", "call_method")
Program = Callable[..., object]


@dataclass(frozen=True, eq=False)
class ReturnedViews:
    """A program of Dynamo without some of its results, and a program that makes these.

    Both take the arguments of the whole program. The results in `views` are views of arguments;
    `positions` are their positions among all results.
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
    """Separate returned views of written arguments from a program; None if it has none.

    A program with a `returned_view_reason` must not be compiled.
    """
    views = {k: node for k, (node, _) in _views_of_written(gm).items()}
    chains = {k: chain for k, node in views.items() if (chain := _view_chain(node)) is not None}
    if not chains:
        return None
    (returned,) = gm.graph.output_node().args
    assert isinstance(returned, (list, tuple))
    rest = tuple(node for k, node in enumerate(returned) if k not in chains)
    program = Graph()
    copies: dict[Node, Node] = {}
    program.graph_copy(gm.graph, copies)
    program.output(tuple(copies[n] if isinstance(n, Node) else n for n in rest))
    needed = frozenset().union(*chains.values())
    makes_views = _view_graph(gm.graph, needed, tuple(views[k] for k in chains))
    separated = GraphModule(gm, program)
    separated.meta.update(gm.meta)
    return ReturnedViews(separated, GraphModule(gm, makes_views), tuple(chains))


def returned_view_reason(gm: GraphModule) -> str | None:
    """Return why PyTorch must make a returned view of a written argument; None if it need not.

    AOTAutograd would get a view of symbolic sizes wrong, and one that needs more than calls that
    make views cannot be separated. Of an argument that was written through `detach`, AOTAutograd
    returns a view without a gradient for what was written.
    """
    inputs = [t for n in gm.graph.nodes if n.op in INPUTS and (t := example_tensor(n)) is not None]
    differentiable = {storage_id(t) for t in inputs if t.requires_grad}
    for node, view in _views_of_written(gm).values():
        if view.requires_grad and storage_id(view) not in differentiable:
            return "it returns a view with a gradient of an argument that it writes through detach"
        if has_symbolic_layout(view) and _view_chain(node) is None:
            return "it returns a view, of symbolic sizes, of an argument that it writes"
    return None


def returns_symbolic_views(gm: GraphModule) -> bool:
    """Return whether the program returns a view of an argument whose layout has symbols.

    AOTAutograd's own wrapper makes such a view where the compiled result lies, without the offset
    of the argument.
    """
    return any(has_symbolic_layout(view) for _, view in _views_of_inputs(gm).values())


def _views_of_written(gm: GraphModule) -> dict[int, tuple[Node, FakeTensor]]:
    """Return the results that are views of written arguments, by position."""
    views = _views_of_inputs(gm)
    written = written_storages(gm.graph) if views else ()
    return {k: (node, view) for k, (node, view) in views.items() if storage_id(view) in written}


def _views_of_inputs(gm: GraphModule) -> dict[int, tuple[Node, FakeTensor]]:
    """Return the results that are views of arguments, by position."""
    storages = storage_ids(n for n in gm.graph.nodes if n.op in INPUTS)
    (returned,) = gm.graph.output_node().args
    assert isinstance(returned, (list, tuple))
    found = {}
    for k, node in enumerate(returned):
        view = example_tensor(node)
        if view is not None and node.op not in INPUTS and storage_id(view) in storages:
            found[k] = node, view
    return found


def _view_chain(node: Node) -> frozenset[Node] | None:
    """Return the nodes that make a view of an argument; None if it needs more than views.

    A write in place is in the chain as the tensor that it writes. Its other operands are not: when
    the program has run, the argument has the values. `torch.no_grad()` inside the program is not
    repeated after it. If the argument requires grad, there is no chain then.
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
                operands = [viewed]
        worklist += operands
    return frozenset(found)


def _storages(node: Node) -> set[int] | None:
    """Return the storages of a node's tensors; None if its value has other parts than numbers."""
    values = tree_leaves(node.meta.get("example_value"))
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    numbers = [x for x in values if isinstance(x, (int, torch.SymInt))]
    if len(tensors) + len(numbers) < len(values) or not values:
        return None
    return {storage_id(t) for t in tensors}


def _view_graph(graph: Graph, needed: frozenset[Node], views: tuple[Node, ...]) -> Graph:
    """Return a graph with the same inputs that returns `views`; it has the needed nodes only.

    A write in place is replaced by the tensor that it writes.
    """
    made = Graph()
    copies: dict[Node, Node] = {}
    for node in graph.nodes:
        if node in needed and written_nodes(node):
            copies[node] = copies[node.args[0]]
        elif node.op == "placeholder" or node in needed:
            copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(tuple(copies[n] for n in views))
    return made
