"""A program of Dynamo as it was captured, which PyTorch runs as it runs the function itself."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch.fx import Graph, GraphModule, Node

from tofuse.capture.dynamo.saved_versions import with_version_checks
from tofuse.torch_internals.dynamo import get_source, set_source


class EagerProgram:
    """A program before passes changed its graph; a call runs the same operators as the function."""

    def __init__(self, make: Callable[[], GraphModule]) -> None:
        self._make = make

    @cached_property
    def module(self) -> GraphModule:
        """The program as a module; made when it is needed, because that takes time."""
        return self._make()

    def __call__(self, *args: object) -> Sequence[object]:
        results: Sequence[object] = self.module.forward(*args)
        return results


def eager_program(gm: GraphModule) -> EagerProgram:
    """Return the program as it is now, even if passes change its graph later."""
    graph = copy_graph(gm.graph)
    return EagerProgram(lambda: with_version_checks(GraphModule(gm, graph)))


def stored_eager_program(pickled: bytes) -> EagerProgram:
    """Return a program from disk."""

    def load() -> GraphModule:
        module = pickle.loads(pickled)
        assert isinstance(module, GraphModule)
        return module

    return EagerProgram(load)


def copy_graph(graph: Graph) -> Graph:
    """Return a copy of a graph of Dynamo's, because compilation changes graphs."""
    copy, copied = Graph(), dict[Node, Node]()
    copy.output(copy.graph_copy(graph, copied))
    for node in graph.find_nodes(op="placeholder"):
        if (source := get_source(node)) is not None:
            set_source(copied[node], source)
    return copy


def pickled_graph(gm: GraphModule) -> bytes | None:
    """Return a program as a pickle without metadata of nodes; None if that is impossible."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.meta.clear()
    try:
        return pickle.dumps(GraphModule(torch.nn.Module(), graph))
    except Exception:
        return None  # it calls a function that has no name
