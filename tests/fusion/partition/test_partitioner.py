"""Partitions are deterministic, acyclic, and made with near-linear work."""

import pytest

from benchmarks.partition_graphs import PARTITION_GRAPHS, SIZE, GraphBuilder, partition_on_cpu
from tests.support.call_count import count_calls
from tests.support.evaluators import rejecting
from tofuse.backends.cpu.llvm.load import host_target
from tofuse.cost.machine import Machine
from tofuse.driver.pipeline import cost_oracle, partition
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lower.lower_region import lower_region
from tofuse.graph_partition import show_partition
from tofuse.ir.fusion_hints import NO_FUSE
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.types import DType

OPS = 2000


NAMES = [make.__name__ for make in PARTITION_GRAPHS]


@pytest.mark.parametrize("make", PARTITION_GRAPHS, ids=NAMES)
def test_work_of_the_partitioner_is_near_linear(make):
    calls = []
    for size in (OPS // 2, OPS):
        graph = make(size)
        assert 0.8 * size < len(graph.ops) < 1.2 * size
        calls.append(count_calls(lambda: partition_on_cpu(graph)))  # noqa: B023
    assert calls[1] < 2.2 * calls[0]


@pytest.mark.parametrize("make", PARTITION_GRAPHS, ids=NAMES)
def test_partition_is_deterministic_and_acyclic(make):
    graph = make(200)
    part = partition_on_cpu(graph)
    assert show_partition(part) == show_partition(partition_on_cpu(make(200)))
    order = {v: k for k, r in enumerate(part.regions) for op in r.ops for v in op.results}
    for k, region in enumerate(part.regions):
        assert all(order.get(v, -1) < k for v in region.inputs)


@pytest.mark.parametrize("make", PARTITION_GRAPHS, ids=NAMES)
def test_fuel_limits_merges_to_the_first_ones(make):
    whole = partition_on_cpu(make(100))
    computing = sum(not r.library for r in partition_on_cpu(make(100), 0).regions)
    names = [(v.producer, v.consumer) for v in whole.fusions]
    for fuel in (0, 1, len(names) // 2, len(names)):
        part = partition_on_cpu(make(100), fuel)
        assert [(v.producer, v.consumer) for v in part.fusions] == names[:fuel]
        assert sum(not r.library for r in part.regions) == computing - min(fuel, len(names))


@pytest.mark.parametrize("returned, kernels", [(False, [101, 1]), (True, [63, 38, 1])])
def test_elementwise_extensions_are_not_evaluated(returned, kernels):
    """Each evaluation lowers and schedules a kernel of all ops merged so far."""
    p, evaluations = GraphBuilder(), list[int]()
    sums = [p("sum", p.input(*SIZE), dims=(1,), dtype=DType.F32)]
    for _ in range(50):
        sums.append(p("sin", sums[-1]))
        sums.append(p("add", *sums[-2:]))
    ends = [p("broadcast", sums[-1], shape=SIZE, dims=(d,)) for d in (0, 1)]
    graph = p.graph(p("mul", *ends), *(sums if returned else ()))
    oracle = cost_oracle(host_target(2), Machine())

    def reject(kernel):
        evaluations.append(len(kernel.body))
        return oracle.evaluate(kernel, "cpu").rejection

    evaluator = rejecting(reject)
    part = partition(graph, evaluator)
    assert [len([op for op in r.ops if op.kind != "broadcast"]) for r in part.regions] == kernels
    assert len(evaluations) < 10
    before = len(evaluations)
    partition(graph, evaluator)
    assert len(evaluations) == before


def test_fusion_hints_in_graph_text_are_obeyed():
    text = """\
graph(x: f32[8]) {{
  v0 = sin(x) : f32[8]  # at m.py:1
  v1 = cos(v0) : f32[8]  # at m.py:2{}
  v2 = exp(v1) : f32[8]  # at m.py:3
  return v2
}}"""
    assert len(partition_on_cpu(parse_graph(text.format(""))).regions) == 1
    assert len(partition_on_cpu(parse_graph(text.format(f" ({NO_FUSE} cos)"))).regions) == 3


def test_elementwise_ops_of_equal_shape_on_separate_views_are_checked():
    """Views of different parts of a tensor need separate loops."""
    part = partition_on_cpu(
        parse_graph("""graph(x: f32[2,8,96]) {
  v0 = slice(x, start=(0, 0, 0), stop=(2, 8, 32), step=(1, 1, 1)) : f32[2,8,32]{768,96,1}
  v1 = reshape(v0, shape=(2, 8, 2, 16)) : f32[2,8,2,16]{768,96,16,1}
  v2 = permute(v1, dims=(0, 2, 1, 3)) : f32[2,2,8,16]{768,16,96,1}
  v3 = mul(v2, 0.5) : f32[2,2,8,16]
  v4 = slice(x, start=(0, 0, 64), stop=(2, 8, 96), step=(1, 1, 1)) : f32[2,8,32]{768,96,1}
  v5 = reshape(v4, shape=(2, 8, 2, 16)) : f32[2,8,2,16]{768,96,16,1}
  v6 = permute(v5, dims=(0, 2, 1, 3)) : f32[2,2,8,16]{768,16,96,1}
  v7 = exp(v6) : f32[2,2,8,16]
  return v3, v7
}""")
    )
    for region in part.regions:
        kernel = coalesce(lower_region(region, part.aliases.memrefs).kernel)
        assert cost_oracle(host_target(2), Machine()).evaluate(kernel, "cpu").rejection is None
