"""The programs inside a program: bodies of control flow, of checkpoints, of autograd Functions."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Graph, GraphModule, Node


def subgraph(node: object) -> GraphModule | None:
    """Return the program that an attribute of a graph is; None for other nodes."""
    if not isinstance(node, Node) or node.op != "get_attr" or node.graph.owning_module is None:
        return None
    module = dict(node.graph.owning_module.named_children()).get(str(node.target))
    return module if isinstance(module, GraphModule) else None


def nodes_of_all_graphs(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph, and those of the programs inside it."""
    for node in graph.nodes:
        yield node
        inner = subgraph(node)
        if inner is not None:
            yield from nodes_of_all_graphs(inner.graph)
