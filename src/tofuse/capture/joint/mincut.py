"""Minimum cut of a network with capacities on vertices: Dinic's algorithm, without recursion."""

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
    """The cheapest set of vertices that every path from a source to a sink passes through.

    Among the cheapest sets it is the one nearest the sinks. `capacities[v]` may be INFINITE;
    there must be a cut that is not.
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
    after = network.reaching(end)
    return {v for v in range(len(capacities)) if 2 * v + 1 in after and 2 * v not in after}


class _Network:
    """Edges in pairs: edge `e` and its reverse `e ^ 1`."""

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
        """Number the vertices by their distance from `start`; whether `end` can be reached."""
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
        """Fill shortest paths until every one has a full edge."""
        following = [0] * len(self.edges)
        path: list[int] = []
        v = start
        while True:
            if v == end:
                v = self._augment(path)
                continue
            advanced = False
            while following[v] < len(self.edges[v]):
                e = self.edges[v][following[v]]
                if self.residual[e] and self.depth[self.target[e]] == self.depth[v] + 1:
                    path.append(e)
                    v, advanced = self.target[e], True
                    break
                following[v] += 1
            if not advanced:
                if not path:
                    return
                v = self.target[path.pop() ^ 1]
                following[v] += 1

    def _augment(self, path: list[int]) -> int:
        """Send what the path takes; step back to before its first full edge."""
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
        """The vertices from which `end` can still be reached."""
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
