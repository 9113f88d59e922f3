"""Where a region is split in two."""

from tofuse.analysis.alias import AliasAnalysis
from tofuse.fusion.partition.region_split import split_by_peak
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.region import Region


def test_split_by_peak_frees_inputs_of_the_first_part():
    """The first part's inputs are free when the second part makes its results."""
    graph = parse_graph("""graph(x: f32[100,10]) {
  s = sum(x, dims=(1,)) : f32[100]
  e = exp(s) : f32[100]
  b = broadcast(e, shape=(100, 20), dims=(0,)) : f32[100,20]
  d = neg(b) : f32[100,20]
  return d
}""")
    region, storage = Region("r", graph.ops, (graph.ops[-1].result,)), AliasAnalysis(graph).memrefs
    first, second = frozenset(("s",)), frozenset(("e", "d"))
    assert split_by_peak(region, {graph.inputs[0]}, storage) == frozenset((first, second))
    assert split_by_peak(region, set(), storage) is None
