"""The minimum cut of a network with vertex capacities."""

from __future__ import annotations

from collections.abc import Sequence

from networkx import DiGraph, minimum_cut
from networkx.algorithms.flow import boykov_kolmogorov

INFINITE = 1 << 62


def cut_vertices(
    capacities: Sequence[int],
    edges: Sequence[tuple[int, int]],
    sources: Sequence[int],
    sinks: Sequence[int],
) -> set[int]:
    """Return the cheapest set of vertices that is on every path from a source to a sink.

    Of the cheapest sets it is the nearest to the sinks. `capacities[v]` may be INFINITE, but a
    finite cut must exist.
    """
    network = DiGraph()  # vertex v is an edge from 2v to 2v + 1; other edges have no capacity limit
    start, end = 2 * len(capacities), 2 * len(capacities) + 1
    network.add_nodes_from((start, end))
    for v, capacity in enumerate(capacities):
        limit = {} if capacity == INFINITE else {"capacity": capacity}
        network.add_edge(2 * v, 2 * v + 1, **limit)
    network.add_edges_from((2 * a + 1, 2 * b) for a, b in edges)
    network.add_edges_from((start, 2 * v) for v in sources)
    network.add_edges_from((2 * v + 1, end) for v in sinks)
    _, (_, sink_side) = minimum_cut(network, start, end, flow_func=boykov_kolmogorov)
    return {v for v in range(len(capacities)) if 2 * v + 1 in sink_side and 2 * v not in sink_side}
