"""Run passes until none of them changes the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tofuse.ir.graph import Graph

MAX_ROUNDS = 3


def run_to_fixed_point(graph: Graph, passes: Sequence[Callable[[Graph], Graph]]) -> Graph:
    """Run all passes in order, round by round, until a round changes nothing."""
    for _ in range(MAX_ROUNDS):
        before = graph
        for graph_pass in passes:
            graph = graph_pass(graph)
        if graph is before:
            break
    return graph
