"""The minimum cut, against all cuts of small random networks."""

import itertools
import random

from tofuse.capture.joint.mincut import INFINITE, cut_vertices


def cuts(edges, sources, sinks, removed):
    """Whether no path leads from a source to a sink without a removed vertex."""
    reached = [s for s in sources if s not in removed]
    for v in reached:
        if v in sinks:
            return False
        reached += [b for a, b in edges if a == v and b not in removed and b not in reached]
    return True


def test_cheapest_of_all_cuts():
    draw = random.Random(0)
    for _ in range(200):
        n = draw.randint(2, 8)
        edges = [(a, b) for a in range(n) for b in range(a + 1, n) if draw.random() < 0.4]
        costs = [draw.randint(1, 9) for _ in range(n)]
        sources, sinks = [0], [n - 1]
        found = cut_vertices(costs, edges, sources, sinks)
        assert cuts(edges, sources, sinks, found)
        best = min(
            sum(costs[v] for v in choice)
            for size in range(n + 1)
            for choice in itertools.combinations(range(n), size)
            if cuts(edges, sources, sinks, set(choice))
        )
        assert sum(costs[v] for v in found) == best


def test_nearest_the_sink():
    assert cut_vertices([4, 4, 4], [(0, 1), (1, 2)], [0], [2]) == {2}
    assert cut_vertices([4, 4, INFINITE], [(0, 1), (1, 2)], [0], [2]) == {1}


def test_long_chain():
    n = 20_000
    assert cut_vertices([5] * n, [(k, k + 1) for k in range(n - 1)], [0], [n - 1]) == {n - 1}
