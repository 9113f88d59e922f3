"""Outputs reuse the memory of dead operands if each element is read before it is written."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager
from tofuse.backends.cpu.llvm.emit import emit
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.parse_plan import parse_plan
from tofuse.ir.parse_schedule import parse_schedule
from tofuse.ir.plan import show_step
from tofuse.plan.buffer_reuse import reuse_buffers
from tofuse.schedule.alias_legality import legal_aliases

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

POINTWISE = """
kernel k(x: in f32, y: in f32, z: out f32) over i:64 {
  v0 = load x[i] : f32
  v1 = load y[%s] : f32
  v2 = add v0 v1 of f32 : f32
  store z[i] v2 : f32
}"""
LOAD_AFTER_STORE = """
kernel k(x: in f32, y: in f32, z: out f32, w: out f32) over i:64 {
  v0 = load x[i] : f32
  store z[i] v0 : f32
  v1 = load y[i] : f32
  store w[i] v1 : f32
}"""
SOFTMAX = """
kernel k(x: in f32, z: out f32) over i:8 j:64 {
  v0 = load x[j + (64)*i] : f32
  v1 = reduce amax<j> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  store z[j + (64)*i] v2 : f32
}"""
OUTER = """
kernel k(x: in f32, y: in f32, z: out f32) over i:8 j:64 {
  v0 = load x[j] : f32
  v1 = load y[j + (64)*i] : f32
  v2 = mul v0 v1 of f32 : f32
  v3 = reduce sum<i> v2 : f32
  store z[j] v3 : f32
}"""
WIDER = """
kernel k(x: in f32, z: out f64) over i:64 {
  v0 = load x[i] : f32
  v1 = convert v0 of f32 : f64
  store z[i] v1 : f64
}"""
FLAT, ROWS = (
    "order i/32 i; parallel 1; vector 16; unroll 1",
    "order i j; parallel 1; vector 16; unroll 1",
)
COLUMNS = "order j/32 i j; parallel 1; vector 16; unroll 1"
CASES = (
    (POINTWISE % "i", FLAT, ((0, 2), (1, 2))),
    (POINTWISE % "i + 1", FLAT, ((0, 2),)),
    (POINTWISE % "63 + (-1)*i", FLAT, ((0, 2),)),
    (POINTWISE % "0", FLAT, ((0, 2),)),
    (LOAD_AFTER_STORE, FLAT, ((0, 2), (0, 3), (1, 3))),
    (SOFTMAX, ROWS, ((0, 1),)),
    (OUTER, COLUMNS, ((0, 2),)),
    (WIDER, FLAT, ()),
)


@pytest.mark.parametrize(("text", "schedule", "expected"), CASES)
def test_buffers_that_may_alias(text, schedule, expected):
    nest = build_nest(parse_kernel(text.strip()), parse_schedule(schedule))
    assert emit(nest)
    assert legal_aliases(nest) == expected


def run_pass(*lines, alias_pairs, results="t_c"):
    plan = parse_plan("\n".join(["plan p(t_x{4}) {", *lines, f"return {results}", "}"]))
    plan = reuse_buffers(plan, alias_pairs)
    return [show_step(s) for s in plan.steps], plan.results


def test_a_chain_uses_one_tensor():
    lines = [
        "t_a = allocate f32[4]{1}",
        "launch 0 k(t_x, t_a)",
        "t_b = allocate f32[4]{1}",
        "launch 1 k(t_a, t_b)",
        "t_c = allocate f32[4]{1}",
        "launch 1 k(t_b, t_c)",
    ]
    steps, results = run_pass(*lines, alias_pairs={0: ((0, 1),), 1: ((0, 1),)})
    assert steps == [lines[0], lines[1], "launch 1 k(t_a, t_a)", "launch 1 k(t_a, t_a)"]
    assert results == ("t_a",)


MAKE_C = "t_c = allocate f32[4]{1}"
MAKE = "t_a = allocate f32[4]{1}", "launch 0 k(t_x, t_a)"


@pytest.mark.parametrize(
    "lines",
    [
        (*MAKE, MAKE_C, "launch 1 k(t_a, t_c)", "launch 0 k(t_x, t_a)"),
        (*MAKE, "t_c = allocate f32[2,1]{2,1}", "launch 1 k(t_a, t_c)"),
        (*MAKE, "t_c = allocate f32[2,2]{3,1}", "launch 1 k(t_a, t_c)"),
        (*MAKE, "t_c = allocate i32[4]{1}", "launch 1 k(t_a, t_c)"),
        (*MAKE, "t_v = view t_a [2]{2} + 0", MAKE_C, "launch 1 k(t_a, t_c)",
         "_ = call my.log.default(t_v)"),
        (*MAKE, "t_v{1,1} = call aten.unfold.default(t_a, 0, 2, 1)", MAKE_C, "launch 1 k(t_a, t_c)",
         "_ = call my.log.default(t_v)"),
        ("t_a{1} = call aten.relu.default(t_x)", MAKE_C, "launch 1 k(t_a, t_c)"),
        (MAKE_C, "launch 1 k(t_x, t_c)"),
        (*MAKE, MAKE_C, "launch 1 k(t_a, t_c, t_a)"),
    ],
)  # fmt: skip
def test_live_or_foreign_memory_is_not_reused(lines):
    steps, results = run_pass(*lines, alias_pairs={1: ((0, 1),)})
    assert steps == [show_step(s) for s in parse_plan(
        "\n".join(["plan p(t_x{4}) {", *lines, "return t_c", "}"])
    ).steps]  # fmt: skip
    assert results == ("t_c",)


@pytest.mark.parametrize("reader", ["launch 0 k(t_c, t_d)", "_ = call my.log.default(t_c)"])
def test_an_output_of_another_shape_becomes_a_view(reader):
    lines = (*MAKE, "t_c = allocate f32[2,2]{1,2}", "launch 1 k(t_a, t_c)", reader)
    steps, names = run_pass(*lines, alias_pairs={1: ((0, 1),)}, results="t_d")
    view = ["t_c = view t_a [2,2]{1,2} + 0"] if "call" in reader else []
    assert steps[2:] == ["launch 1 k(t_a, t_a)", *view, reader.replace("k(t_c", "k(t_a")]
    assert names == ("t_d",)
    steps, names = run_pass(*lines[:-1], alias_pairs={1: ((0, 1),)})
    assert steps[3:] == ["t_c = view t_a [2,2]{1,2} + 0"] and names == ("t_c",)


def test_returned_memory_is_not_reused():
    lines = (*MAKE, MAKE_C, "launch 1 k(t_a, t_c)")
    steps, results = run_pass(*lines, alias_pairs={1: ((0, 1),)}, results="t_a, t_c")
    assert len(steps) == 4 and results == ("t_a", "t_c")


def test_addmm_does_not_reuse_a_factor():
    def run(x, w):
        y, z = x.sin(), x.cos()
        return torch.addmm(y, y.t(), w), torch.addmm(z, w, z.view(-1, x.shape[0]))

    x, w = torch.randn(300, 300), torch.randn(300, 300)
    assert_as_eager(run, x, w, rtol=1e-4, atol=1e-4)


def attention(q, k, v):
    return ((q @ k.transpose(-1, -2)) / 8).softmax(-1) @ v


def residual(x, w):
    y = x @ w
    z = F.layer_norm(y, y.shape[-1:]) + y
    return z.relu() @ w, z


@pytest.mark.parametrize("size", [509, 512, 600])
@pytest.mark.parametrize("grad", [False, True])
def test_results_match_eager(size, grad):
    q, k, v = (torch.randn(2, size, 64, requires_grad=grad) for _ in range(3))
    assert_as_eager(attention, q, k, v, rtol=1e-4, atol=1e-4)
    x, w = torch.randn(size, size, requires_grad=grad), torch.randn(size, size) / size**0.5
    assert_as_eager(residual, x, w, rtol=1e-3, atol=1e-3)


def test_a_softmax_reuses_the_memory_of_its_scores():
    q, k, v = (torch.randn(2, 512, 64) for _ in range(3))
    (graph,) = tofuse.explain(attention, precision="eager")(q, k, v).graphs
    assert graph.peak_bytes == 2 * 512 * 512 * 4 + 2 * 512 * 64 * 4
    assert graph.eager_peak_bytes == 2 * 2 * 512 * 512 * 4


@pytest.mark.parametrize("size", [7, 32, 300])
def test_an_activation_reuses_the_memory_of_its_product(size):
    def gated(x, v, w):
        return F.silu(x @ v) * (x @ w)

    x, v, w = (torch.randn(size, size) / size**0.25 for _ in range(3))
    (graph,) = tofuse.explain(gated, precision="eager")(x, v, w).graphs
    assert graph.peak_bytes == 2 * x.nbytes and graph.eager_peak_bytes == 3 * x.nbytes
    assert_as_eager(gated, x, v, w, rtol=1e-4, atol=1e-4)
