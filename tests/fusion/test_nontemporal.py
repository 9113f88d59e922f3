"""Large results go past the caches only where they are not read soon."""

from tofuse.fusion.nontemporal import nontemporal_values
from tofuse.ir.graph.parse import parse_graph
from tofuse.ir.region import Partition, Region

TEXT = """
graph(x: f32[3000000], y: f32[1000], z: f32[6000000]) {
  v0 = exp(x) : f32[3000000]
  v1 = sin(y) : f32[1000]
  v2 = cos(z) : f32[6000000]
  v3 = neg(v0) : f32[3000000]
  return v3, v1, v2
}
"""


def partition(*order):
    """Each op a region, in this order."""
    graph = parse_graph(TEXT.strip())
    made = {op.result.name: op for op in graph.ops}
    regions = tuple(Region(n, (made[n],), (made[n].result,)) for n in order)
    return Partition(graph, regions, {}, ())


def names(part, l3_bytes=10 << 20):
    return sorted(v.name for v in nontemporal_values(part, l3_bytes))


def test_what_the_next_region_reads_stays():
    assert names(partition("v0", "v3")) == ["v3"]


def test_so_does_what_is_read_after_little_else():
    assert names(partition("v0", "v1", "v3")) == ["v3"]


def test_so_does_what_half_of_the_shared_cache_holds():
    assert names(partition("v0", "v2", "v3"), 32 << 20) == ["v2"]
    assert names(partition("v0", "v2", "v3"), 64 << 20) == []


def test_little_stays_whatever_the_caches():
    assert names(partition("v1", "v0"), 0) == ["v0"]


def test_what_is_read_after_much_else_or_never_does_not():
    assert names(partition("v0", "v2", "v3")) == ["v0", "v2", "v3"]
    assert names(partition("v1", "v0")) == ["v0"]
