"""The minimum cut, compared with all cuts of small random networks."""

import itertools
import random

from tofuse.capture.joint.mincut import INFINITE, cut_vertices


def separates(edges, sources, sinks, cut):
    """Whether no path leads from a source to a sink without a cut vertex."""
    reached = [s for s in sources if s not in cut]
    for v in reached:
        if v in sinks:
            return False
        reached += [b for a, b in edges if a == v and b not in cut and b not in reached]
    return True


def test_cut_is_the_cheapest_of_all():
    draw = random.Random(0)
    for _ in range(200):
        n = draw.randint(2, 8)
        edges = [(a, b) for a in range(n) for b in range(a + 1, n) if draw.random() < 0.4]
        costs = [draw.randint(1, 9) for _ in range(n)]
        sources, sinks = [0], [n - 1]
        cut = cut_vertices(dict(enumerate(costs)), edges, sources, sinks)
        assert separates(edges, sources, sinks, cut)
        best = min(
            sum(costs[v] for v in choice)
            for size in range(n + 1)
            for choice in itertools.combinations(range(n), size)
            if separates(edges, sources, sinks, set(choice))
        )
        assert sum(costs[v] for v in cut) == best


def test_cut_is_nearest_to_the_sink():
    edges = [(0, 1), (1, 2)]
    assert cut_vertices({0: 4, 1: 4, 2: 4}, edges, [0], [2]) == {2}
    assert cut_vertices({0: 4, 1: 4, 2: INFINITE}, edges, [0], [2]) == {1}


def test_long_chain():
    n = 20_000
    edges = [(k, k + 1) for k in range(n - 1)]
    assert cut_vertices(dict.fromkeys(range(n), 5), edges, [0], [n - 1]) == {n - 1}
