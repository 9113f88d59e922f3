"""Large results are stored nontemporally only if they are not read soon."""

from tofuse.analysis.alias import AliasAnalysis
from tofuse.fusion.nontemporal import nontemporal_values
from tofuse.graph_partition import Partition
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.region import Region

TEXT = """
graph(x: f32[3000000], y: f32[1000], z: f32[6000000]) {
  v0 = exp(x) : f32[3000000]
  v1 = sin(y) : f32[1000]
  v2 = cos(z) : f32[6000000]
  v3 = neg(v0) : f32[3000000]
  return v3, v1, v2
}
"""


def partition_in(*order):
    """One region for each op, in this order."""
    graph = parse_graph(TEXT.strip())
    made = {op.result.name: op for op in graph.ops}
    regions = tuple(Region(n, (made[n],), (made[n].result,)) for n in order)
    return Partition(graph, regions, AliasAnalysis(graph), ())


def nontemporal_names(part, l3_bytes=10 << 20):
    return sorted(v.name for v in nontemporal_values(part, l3_bytes))


def test_a_result_read_by_the_next_region_is_cached():
    assert nontemporal_names(partition_in("v0", "v3")) == ["v3"]


def test_a_result_read_after_few_bytes_is_cached():
    assert nontemporal_names(partition_in("v0", "v1", "v3")) == ["v3"]


def test_a_result_of_half_the_shared_cache_is_cached():
    assert nontemporal_names(partition_in("v0", "v2", "v3"), 32 << 20) == ["v2"]
    assert nontemporal_names(partition_in("v0", "v2", "v3"), 64 << 20) == []


def test_a_small_result_is_cached_whatever_the_caches():
    assert nontemporal_names(partition_in("v1", "v0"), 0) == ["v0"]


def test_a_large_result_read_late_or_never_is_nontemporal():
    assert nontemporal_names(partition_in("v0", "v2", "v3")) == ["v0", "v2", "v3"]
    assert nontemporal_names(partition_in("v1", "v0")) == ["v0"]
