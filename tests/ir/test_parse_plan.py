"""Plans print, parse and verify, including those of compiled programs."""

from collections.abc import Callable

import pytest
import torch

import tofuse
from tofuse.analysis.plan_liveness import peak_bytes
from tofuse.errors import ParseError, VerifyError
from tofuse.ir.graph import Graph
from tofuse.ir.parse_arguments import parse_arguments
from tofuse.ir.parse_plan import parse_plan
from tofuse.ir.plan import Call
from tofuse.ir.verify_plan import KernelSignature, verify_plan

EXAMPLE = """\
plan forward(t_x{s0,1}!, t_e{}, n2, t_z{4,1}~) {
  size s0 = t_x.size(0)
  size s1 = t_x.stride(0)
  size s2 = n2
  size e0 = (max(s1, 2*s0) // 2) + s2
  arena 4096
  t_v = allocate f32[s0,2*s1]{2*s1,1}
  launch 0 softmax_3(t_x, t_v, arena+64; s0, s1)
  launch 1 neg_4(t_v)
  t_a{4,1}, t_b = call aten.topk.default[0,1](t_x, 2, dim=[1, -1], name='a) = call (b')
  _ = call my.log.default(t_a, "don't")
  t_d{1}, t_g = call my.two.default[0,1](t_e) returns [s0], [3,2*s1] as bf16, i64
  t_c{} = call region3([t_a, t_e], s0=s0)
  release t_x, t_e
  t_w = view t_v [s0]{2*s1} + 3+2*s1
  release t_a, t_b, t_c, t_d, t_g
  return t_w, None, s0, 1+2*s0
}"""


def test_example():
    plan = parse_plan(EXAMPLE)
    assert repr(plan) == EXAMPLE
    verify_plan(plan)
    call = plan.steps[4]
    assert isinstance(call, Call)
    assert (call.results, call.picks, call.strides) == (("t_a", "t_b"), (0, 1), ((4, 1), None))
    assert call.arguments.keyword[-1] == ("name", "a) = call (b")
    assert plan.steps[5] == Call("my.log.default", parse_arguments('t_a, "don\'t"'), (), (), ())


def test_tiles():
    rows = "8 by 1 reads 0 1 8 4 -4 0 writes 1 0 8 4 0 4; 8 by 2"
    text = plan(
        "t_a = allocate f32[8]{1}",
        f"tiles 4 in 2 of group 0 (t_v 64, t_a 32 allocated; {rows})",
        "launch 0 k(t_x, t_v) in group 0",
        "launch 1 k(t_v, t_a) in group 0",
        "release t_v",
        results="t_a",
    )
    parsed = parse_plan(text)
    assert parse_plan(repr(parsed)) == parsed
    assert f"(t_v 64, t_a 32 allocated; {rows})" in repr(parsed)
    verify_plan(parsed)
    assert peak_bytes(parsed, Graph((), (), ())) == 32 + 64


def test_an_empty_plan():
    text = "plan p() {\n  return\n}"
    assert repr(parse_plan(text)) == text
    verify_plan(parse_plan(text))


def plan(*lines: str, results: str = "") -> str:
    return "\n".join(["plan p(t_x{4}, n1) {", *lines, f"return {results}", "}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plan p() {", "a plan is a header"),
        ("plan p {\nreturn\n}", "line 1, column 8: '(' expected"),
        (plan("jump"), "line 2, column 5: '=' expected at the end of the line"),
        (plan("t_y = allocate q7[4]{1}"), "line 2, column 16: q7 is not an element type"),
    ],
)
def test_parse_errors_name_the_line(text: str, message: str):
    with pytest.raises(ParseError) as caught:
        parse_plan(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (plan("launch 0 k(t_y)"), "t_y is not defined before, in 'launch 0 k(t_y)'"),
        (plan("release t_x", "launch 0 k(t_x)"), "t_x was released before"),
        (plan("release t_x", "release t_x"), "t_x was released before"),
        (plan("release t_x, t_x"), "released twice"),
        (plan("t_x = allocate f32[4]{1}"), "t_x is defined twice"),
        (plan("t_y = allocate f32[s0]{1}"), "the size s0 is not defined"),
        (plan("launch 0 k(t_x; s0)"), "the size s0 is not defined"),
        (plan("t_y{} = call aten.a.b(t_z)"), "t_z is not defined before"),
        (plan("t_y{}, t_z{} = call aten.a.b(t_x)"), "0 picks for 2 results"),
        (plan("t_y = view t_z [4]{1} + 0"), "t_z is not defined before"),
        (plan("launch 0 k(arena+0)"), "outside an arena of 0 bytes"),
        (plan("arena 64", "launch 0 k(arena+64)"), "outside an arena of 64 bytes"),
        (plan(results="t_y"), "the result t_y is not defined"),
        (plan("release t_x", results="t_x"), "the result t_x is released"),
        (plan(results="s0"), "the size s0 is not defined"),
        (plan("t-y = allocate f32[4]{1}"), "'t-y' is no name"),
        (plan("size if = t_x.size(0)"), "'if' is no name"),
        (plan("t_y = allocate f32[4]{-1}"), "a shape, strides or an offset cannot be"),
        (plan("t_y = allocate f32[4]{1,1}"), "a shape, strides or an offset cannot be"),
        (plan("t_y = view t_x [4]{1} + -1"), "a shape, strides or an offset cannot be"),
        (
            plan("t_y = allocate f32[4,3]{3,1}", "t_z = view t_y [3]{4} + 4"),
            "outside of its source",
        ),
        (
            plan(
                "t_y = allocate f32[6]{1}", "t_z = view t_y [2]{1} + 4", "t_w = view t_z [1]{1} + 2"
            ),
            "outside of its source",
        ),
    ],
)
def test_errors_name_the_step(text: str, message: str):
    with pytest.raises(VerifyError) as caught:
        verify_plan(parse_plan(text))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (plan("launch 2 k(t_x)"), "there is no kernel 2"),
        (plan("launch -1 k(t_x)"), "there is no kernel -1"),
        (plan("launch 0 k(t_x, t_x)"), "kernel 0 takes 1 tensors and 0 sizes"),
        (plan("launch 0 k(t_x; 3)"), "kernel 0 takes 1 tensors and 0 sizes"),
        (plan("launch 1 k(t_x; 3) in group 0"), "kernel 1 cannot run in a group"),
    ],
)
def test_launches_fit_the_kernels(text: str, message: str):
    kernels = [KernelSignature(1, 0, groups=True), KernelSignature(1, 1, groups=False)]
    verify_plan(parse_plan(plan("launch 0 k(t_x) in group 0", "launch 1 k(t_x; 4)")), kernels)
    with pytest.raises(VerifyError) as caught:
        verify_plan(parse_plan(text), kernels)
    assert message in str(caught.value)


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w) * 2


def product(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.relu(x @ x.t()).softmax(0)
    return y, y.t(), y.topk(2).values, w + 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [norm, product])
def test_plans_of_compiled_programs_round_trip(fn: Callable[..., object], dynamic: bool):
    torch._dynamo.reset()
    x = torch.randn(6, 8, requires_grad=True)
    report = tofuse.explain(fn, dynamic=dynamic)(x, torch.randn(8, requires_grad=True))
    assert len(report.graphs) == 2
    for graph in report.graphs:
        assert repr(parse_plan(graph.plan)) == graph.plan
        verify_plan(parse_plan(graph.plan))
