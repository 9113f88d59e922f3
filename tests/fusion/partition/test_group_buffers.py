"""The buffers of a group are those of the region that it becomes, whatever the order of merges."""

import random

import pytest

from tofuse.analysis.alias import AliasAnalysis
from tofuse.fusion.partition.graph_index import index_graph
from tofuse.fusion.partition.groups import Groups
from tofuse.ir.parse_graph import parse_graph


def random_graph(draw):
    """Return a graph of elementwise ops and views of six inputs."""
    names, lines = [f"x{k}" for k in range(6)], []
    for k in range(40):
        a, b = draw.choices(names, k=2)
        if draw.random() < 0.3:
            lines.append(f"  v{k} = permute({a}, dims=(1, 0)) : f32[4,4]{{1,4}}")
        else:
            lines.append(f"  v{k} = mul({a}, {b}) : f32[4,4]")
        names.append(f"v{k}")
    inputs = ", ".join(f"x{k}: f32[4,4]" for k in range(6))
    outputs = ", ".join(draw.sample(names[6:], 5))
    return parse_graph("\n".join([f"graph({inputs}) {{", *lines, f"  return {outputs}", "}"]))


def buffers(region, index):
    return {index.aliases.root(v) for v in region.inputs}, set(region.outputs)


@pytest.mark.parametrize("seed", range(20))
def test_buffers_are_those_of_the_region(seed):
    draw = random.Random(seed)
    index = index_graph(AliasAnalysis(random_graph(draw)))
    groups, ops = Groups(index), index.computing_ops_in_order()
    for op in ops:
        groups.add(op)
    for _ in range(60):
        a, b = (groups.group_of[op] for op in draw.sample(ops, 2))
        if a is b or not groups.can_merge(a, b):
            continue
        together = index.make_region(groups.merged_ops(a, b), "together")
        loads, stores = buffers(together, index)
        assert a.buffers.count_with(b.buffers) == len(loads) + len(stores)
        groups.merge(a, b)
        merged = groups.group_of[a.ops[0]].buffers
        assert (set(merged.loads), set(merged.stores)) == (loads, stores)
