"""The minimum cut of a network with vertex capacities."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from networkx import DiGraph, minimum_cut
from networkx.algorithms.flow import boykov_kolmogorov

INFINITE = 1 << 62
V = TypeVar("V", bound=Hashable)


def cut_vertices(
    capacities: Mapping[V, int],
    edges: Iterable[tuple[V, V]],
    sources: Iterable[V],
    sinks: Iterable[V],
) -> set[V]:
    """Return the cheapest set of vertices that is on every path from a source to a sink.

    Of the cheapest sets it is the nearest to the sinks. `capacities[v]` may be INFINITE, but a
    finite cut must exist.
    """
    network = DiGraph()  # a vertex is an edge from "in" to "out"; other edges have no limit
    network.add_nodes_from(("start", "end"))
    for v, capacity in capacities.items():
        limit = {} if capacity == INFINITE else {"capacity": capacity}
        network.add_edge(("in", v), ("out", v), **limit)
    network.add_edges_from((("out", a), ("in", b)) for a, b in edges)
    network.add_edges_from(("start", ("in", v)) for v in sources)
    network.add_edges_from((("out", v), "end") for v in sinks)
    _, (_, sink_side) = minimum_cut(network, "start", "end", flow_func=boykov_kolmogorov)
    return {v for v in capacities if ("out", v) in sink_side and ("in", v) not in sink_side}
