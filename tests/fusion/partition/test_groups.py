"""Groups stay acyclic in whatever order they are merged."""

import random
from dataclasses import replace

import pytest

from tofuse.analysis.alias import AliasAnalysis
from tofuse.fusion.partition.graph_index import index_graph
from tofuse.fusion.partition.groups import Groups
from tofuse.ir.parse_graph import parse_graph

CROSSING = parse_graph("""graph(x: f32[4], y: f32[4]) {
  s = sigmoid(x) : f32[4]
  t = neg(s) : f32[4]
  b = neg(y) : f32[4]
  a = mul(t, y) : f32[4]
  c = sigmoid(b) : f32[4]
  e = neg(c) : f32[4]
  d = mul(e, x) : f32[4]
  return a, d
}""")


def make_groups(graph, edges):
    index = index_graph(AliasAnalysis(graph))
    read = {op: [p for p in graph.ops if (p, op) in edges] for op in graph.ops}
    groups = Groups(replace(index, predecessors=read))
    for op in graph.ops:
        groups.add(op)
    return groups


def graph_edges(graph):
    return {(p, op) for op in graph.ops for p in graph.ops if p.result in op.inputs}


def test_path_through_a_merged_group_forbids_a_merge():
    """dots1: `e` comes after `a`, but the group of `d`, which reads `e`, also has an early op."""
    s, _, b, a, _, _, d = CROSSING.ops
    groups = make_groups(CROSSING, graph_edges(CROSSING))
    assert groups.can_merge(groups.group_of[s], groups.group_of[d])
    groups.merge(groups.group_of[s], groups.group_of[d])
    assert not groups.can_merge(groups.group_of[a], groups.group_of[b])


@pytest.mark.parametrize("seed", range(20))
def test_random_merges_keep_a_topological_order(seed):
    draw = random.Random(seed)
    lines = [f"  v{k} = neg(x) : f32[4]" for k in range(24)]
    graph = parse_graph("\n".join(["graph(x: f32[4]) {", *lines, "  return v0", "}"]))
    pairs = [(p, op) for k, op in enumerate(graph.ops) for p in graph.ops[:k]]
    edges = set(draw.sample(pairs, 30))
    groups = make_groups(graph, edges)
    for p, op in draw.choices(pairs, k=200):
        a, b = groups.group_of[p], groups.group_of[op]
        if a is b:
            continue
        can_merge = not (has_indirect_path(a, b) or has_indirect_path(b, a))
        assert groups.can_merge(a, b) == can_merge
        if can_merge:
            groups.merge(a, b)
    position = {g: k for k, g in enumerate(groups.topological_order())}
    assert all(position[groups.group_of[p]] <= position[groups.group_of[op]] for p, op in edges)


def has_indirect_path(first, last):
    """Whether a path of two steps or more leads from one group to another."""
    work, seen = [g for g in first.successors if g is not last], set()
    while work:
        g = work.pop()
        if g not in seen:
            seen.add(g)
            work += g.successors
    return last in seen
