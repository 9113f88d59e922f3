"""Layered layout of diagrams."""

import random
from functools import partial

import pytest

from tests.support.call_count import count_calls
from tofuse.report.diagram_layout import MAX_ROUTED_ROWS, Gaps, layered_layout

GAPS = Gaps(10, 20, 500)


def random_dag(count: int, seed: int):
    """Return boxes of random sizes, with edges to nearby boxes and a few to distant ones."""
    rng = random.Random(seed)
    sizes = {k: (rng.uniform(20, 120), rng.choice((20.0, 20.0, 90.0))) for k in range(count)}
    edges = []
    for k in range(1, count):
        reach = k if rng.random() < 0.05 else min(k, 6)
        edges += [(k - rng.randint(1, reach), k) for _ in range(rng.randint(0, 2))]
    return sizes, edges


@pytest.mark.parametrize("count", [0, 1, 2, 10, 150])
@pytest.mark.parametrize("seed", range(3))
def test_boxes_do_not_overlap_and_edges_run_down(count: int, seed: int):
    sizes, edges = random_dag(count, seed)
    layout = layered_layout(sizes, edges, GAPS)
    boxes = [(*layout.positions[k], *sizes[k]) for k in sizes]
    for i, (x, y, w, h) in enumerate(boxes):
        assert x >= -1e-6 and x + w <= layout.width + 1e-6 and y + h <= layout.height + 1e-6
        for u, v, a, b in boxes[:i]:
            assert x + w <= u + 1e-6 or u + a <= x + 1e-6 or y + h <= v or v + b <= y
    for a, b in edges:
        assert layout.positions[a][1] + sizes[a][1] < layout.positions[b][1]
        points = layout.bends.get((a, b))
        if points is not None:
            assert list(points) == sorted(points, key=lambda p: p[1])
            assert len(points) <= 2 * MAX_ROUTED_ROWS
            for x, y in points[::2]:  # an edge enters each row between its boxes
                inside = [k for k in sizes if _contains((*layout.positions[k], *sizes[k]), x, y)]
                assert not inside


def _contains(box: tuple[float, ...], x: float, y: float) -> bool:
    left, top, width, height = box
    return left < x < left + width and top <= y < top + height


def test_chain_is_straight():
    sizes = {k: (40.0 + 10 * k, 20.0) for k in range(5)}
    layout = layered_layout(sizes, [(k, k + 1) for k in range(4)], GAPS)
    centres = [layout.positions[k][0] + sizes[k][0] / 2 for k in sizes]
    assert max(centres) - min(centres) < 1e-6


def test_wide_layer_is_split_into_rows():
    sizes = {k: (100.0, 20.0) for k in range(40)}
    layout = layered_layout(sizes, [(k, 39) for k in range(39)], GAPS)
    rows = {y for _, y in layout.positions.values()}
    assert len(rows) > 8 and layout.width < 39 * 110 / 3  # a third of the width of one row


def test_work_grows_as_the_number_of_boxes():
    dags = [random_dag(count, 1) for count in (1000, 2000)]
    counts = [count_calls(partial(layered_layout, d[0], d[1], GAPS)) for d in dags]
    assert counts[1] < 2.5 * counts[0]
