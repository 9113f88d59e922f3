"""Which programs are recorded as CUDA graphs."""

import pytest

from tofuse.backends.cuda import record_graph
from tofuse.backends.cuda.record_graph import recordable_device
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.parse_plan import parse_plan

GRAPH = """graph(x: f32[8]@A, s: i64[2]) {
  v0 = exp(x) : f32[8]@B
  v1 = uniform(s, stream=0, shape=(8), dtype=f32) : f32[8]@B
  v2 = opaque(v0, target='TARGET', args='$0', shape=(8), dtype=f32) : f32[8]@C
  return v1, v2
}"""
LAUNCH = "launch 0 one(t_x, t_a)"
PLAN = """plan forward(t_x{1}, t_s{1}) {
  STEPS
  return t_x
}"""
CASES = [
    (("cuda:0", "cuda:0", "cuda:0"), "aten.sort.default", "cuda:0"),
    (("cuda:1", "cuda:1", "cuda:1"), "aten.sort.default", "cuda:1"),
    (("cuda:0", "cuda:0", "cuda:1"), "aten.sort.default", None),
    (("cuda:0", "cuda:0", "cpu"), "aten.sort.default", None),
    (("cpu", "cuda:0", "cuda:0"), "aten.sort.default", None),
    (("cuda:0", "cuda:0", "cuda:0"), "aten._local_scalar_dense.default", None),
    (("cuda:0", "cuda:0", "cuda:0"), "aten.nonzero.default", None),
    (("cuda:0", "cuda:0", "cuda:0"), "my.operator.default", None),
]


@pytest.mark.parametrize(("devices", "target", "expected"), CASES)
def test_all_values_are_on_one_gpu_and_operators_can_be_captured(devices, target, expected):
    text = GRAPH.replace("TARGET", target)
    for letter, device in zip("ABC", devices, strict=True):
        text = text.replace(f"@{letter}", "" if device == "cpu" else f"@{device}")
    plan = parse_plan(PLAN.replace("STEPS", f"{LAUNCH}\n  t_y = call {target}(t_x)"))
    assert recordable_device(parse_graph(text), plan) == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([LAUNCH], None),
        ([LAUNCH, LAUNCH], "cuda:0"),
        ([f"{LAUNCH} in group 0", f"{LAUNCH} in group 0"], None),
        ([f"{LAUNCH} in group 0", f"{LAUNCH} in group 1"], "cuda:0"),
    ],
)
def test_one_launch_is_not_recorded(steps, expected):
    graph = parse_graph("graph(x: f32[8]@cuda:0) {\n  return x\n}")
    plan = parse_plan(PLAN.replace("STEPS", "\n  ".join(steps)))
    assert recordable_device(graph, plan) == expected


def test_nothing_is_recorded_if_no_count_shows_who_holds_a_result(monkeypatch):
    monkeypatch.setattr(record_graph, "COUNTS_SHOW_OWNERS", False)
    test = parse_graph("graph(x: f32[8]@cuda:0) {\n  return x\n}")
    plan = parse_plan(PLAN.replace("STEPS", f"{LAUNCH}\n  {LAUNCH}"))
    assert recordable_device(test, plan) is None
