"""The bytes that a plan holds at each step."""

from tofuse.analysis.plan_liveness import memory_timeline, peak_bytes
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.parse_plan import parse_plan

GRAPH = parse_graph("""backward(x: f32[4], s: f32[4]) {
  v0 = exp(x) : f32[4]
  v1 = neg(v0) : f32[4]
  return v1
}""")
PLAN = parse_plan("""plan backward(t_x{1}, t_s{1}) {
  arena 64
  launch 0 exp_0(t_x, arena+0)
  t_v0 = allocate f32[4]{1}
  launch 1 neg_1(arena+0, t_v0)
  release arena
  t_view = view t_v0 [2,2]{2,1} + 0
  release t_v0
  t_v1 = call aten.neg.default(t_view)
  release t_view, t_s
  _ = call aten.neg.out(t_v1, out=t_v1)
  return t_v1
}""")


def test_memory_ends_with_the_last_name_for_it():
    """An arena ends at its release, an allocation with its last view."""
    timeline = memory_timeline(PLAN, GRAPH)
    assert [n for _, n in timeline] == [64, 64 + 16, 16 + 16, 16]
    assert [PLAN.steps[k] for k, _ in timeline] == [PLAN.steps[k] for k in (1, 3, 7, 9)]
    assert peak_bytes(PLAN, GRAPH) == 80


def test_saved_tensors_count_until_their_release():
    saved = [v for v in GRAPH.inputs if v.name == "s"]
    assert [n for _, n in memory_timeline(PLAN, GRAPH, saved)] == [80, 96, 48, 16]
