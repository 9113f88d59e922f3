"""The minimum cut of a network with vertex capacities: Dinic's algorithm, without recursion."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

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
    network = _Network(2 * len(capacities) + 2)
    start, end = 2 * len(capacities), 2 * len(capacities) + 1
    for v, capacity in enumerate(capacities):
        network.connect(2 * v, 2 * v + 1, capacity)
    for a, b in edges:
        network.connect(2 * a + 1, 2 * b, INFINITE)
    for v in sources:
        network.connect(start, 2 * v, INFINITE)
    for v in sinks:
        network.connect(2 * v + 1, end, INFINITE)
    while network.level(start, end):
        network.push(start, end)
    sink_side = network.reaching(end)
    return {v for v in range(len(capacities)) if 2 * v + 1 in sink_side and 2 * v not in sink_side}


class _Network:
    """A flow network with edges in pairs: edge `e` and its reverse `e ^ 1`."""

    def __init__(self, vertices: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(vertices)]
        self.target: list[int] = []
        self.residual: list[int] = []
        self.depth: list[int] = []

    def connect(self, a: int, b: int, capacity: int) -> None:
        for origin, target, residual in ((a, b, capacity), (b, a, 0)):
            self.edges[origin].append(len(self.target))
            self.target.append(target)
            self.residual.append(residual)

    def level(self, start: int, end: int) -> bool:
        """Label the vertices by distance from `start`; return whether `end` is reachable."""
        self.depth = [-1] * len(self.edges)
        self.depth[start] = 0
        queue = deque([start])
        while queue:
            v = queue.popleft()
            for e in self.edges[v]:
                if self.residual[e] and self.depth[self.target[e]] < 0:
                    self.depth[self.target[e]] = self.depth[v] + 1
                    queue.append(self.target[e])
        return self.depth[end] >= 0

    def push(self, start: int, end: int) -> None:
        """Push a blocking flow: saturate an edge of every shortest path."""
        next_edge = [0] * len(self.edges)
        path: list[int] = []
        v = start
        while True:
            if v == end:
                v = self._augment(path)
                continue
            advanced = False
            while next_edge[v] < len(self.edges[v]):
                e = self.edges[v][next_edge[v]]
                if self.residual[e] and self.depth[self.target[e]] == self.depth[v] + 1:
                    path.append(e)
                    v, advanced = self.target[e], True
                    break
                next_edge[v] += 1
            if not advanced:
                if not path:
                    return
                v = self.target[path.pop() ^ 1]
                next_edge[v] += 1

    def _augment(self, path: list[int]) -> int:
        """Augment along the path; cut it before its first saturated edge, return its end."""
        flow = min(self.residual[e] for e in path)
        assert flow < INFINITE // 2, "no finite cut"
        for e in path:
            self.residual[e] -= flow
            self.residual[e ^ 1] += flow
        first = next(k for k, e in enumerate(path) if not self.residual[e])
        v = self.target[path[first] ^ 1]
        del path[first:]
        return v

    def reaching(self, end: int) -> set[int]:
        """Return the vertices from which `end` is reachable in the residual network."""
        found = {end}
        queue = deque([end])
        while queue:
            v = queue.popleft()
            for e in self.edges[v]:
                origin = self.target[e]
                if self.residual[e ^ 1] and origin not in found:
                    found.add(origin)
                    queue.append(origin)
        return found
