"""Merged groups never wait for one another, whatever the order of the merges."""

import random

import pytest

from tofuse.fusion.partition.groups import Groups
from tofuse.ir.graph.parse import parse_graph

CROSSING = parse_graph("""graph(x: f32[4], y: f32[4]) {
  s = sigmoid(x) : f32[4]
  t = relu(s) : f32[4]
  b = relu(y) : f32[4]
  a = mul(t, y) : f32[4]
  c = sigmoid(b) : f32[4]
  e = relu(c) : f32[4]
  d = mul(e, x) : f32[4]
  return a, d
}""")


def grouped(graph, edges):
    groups = Groups({op: k for k, op in enumerate(graph.ops)})
    for op in graph.ops:
        groups.add(op, False, [p for p in graph.ops if (p, op) in edges])
    return groups


def edges_of(graph):
    return {(p, op) for op in graph.ops for p in graph.ops if p.result in op.inputs}


def test_a_path_through_a_group_that_has_ops_on_both_sides():
    """dots1: `e` stands behind `a`, but the group of `d` that needs it has an op before."""
    s, _, b, a, _, _, d = CROSSING.ops
    groups = grouped(CROSSING, edges_of(CROSSING))
    assert groups.separable(groups.of[s], groups.of[d])
    groups.merge(groups.of[s], groups.of[d])
    assert not groups.separable(groups.of[a], groups.of[b])


@pytest.mark.parametrize("seed", range(20))
def test_any_merges_leave_an_order(seed):
    draw = random.Random(seed)
    lines = [f"  v{k} = relu(x) : f32[4]" for k in range(24)]
    graph = parse_graph("\n".join(["graph(x: f32[4]) {", *lines, "  return v0", "}"]))
    pairs = [(p, op) for k, op in enumerate(graph.ops) for p in graph.ops[:k]]
    edges = set(draw.sample(pairs, 30))
    groups = grouped(graph, edges)
    for p, op in draw.choices(pairs, k=200):
        a, b = groups.of[p], groups.of[op]
        if a is b:
            continue
        free = not (apart(a, b) or apart(b, a))
        assert groups.separable(a, b) == free
        if free:
            groups.merge(a, b)
    place = {g: k for k, g in enumerate(groups.sorted())}
    assert all(place[groups.of[p]] <= place[groups.of[op]] for p, op in edges)


def apart(first, last):
    """Whether a path of two steps or more leads from one group to another."""
    work, seen = [g for g in first.after if g is not last], set()
    while work:
        g = work.pop()
        if g not in seen:
            seen.add(g)
            work += g.after
    return last in seen
