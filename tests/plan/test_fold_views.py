"""Tensors are allocated in the shape of a view if only launches and views read them."""

import pytest
import torch

import tofuse
from tofuse.ir.parse_plan import parse_plan
from tofuse.ir.plan import show_step
from tofuse.plan.fold_views import fold_views

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

ALLOCATE = "t_a = allocate f32[2,3,4]{12,4,1}"
LAUNCH = "launch 0 k(t_x, t_a)"


def run_pass(*lines, results):
    plan = parse_plan("\n".join(["plan p(t_x{4}) {", *lines, f"return {results}", "}"]))
    plan = fold_views(plan)
    return [show_step(s) for s in plan.steps], plan.results


def test_the_allocation_takes_the_shape_of_a_view():
    lines = [ALLOCATE, LAUNCH, "t_v = view t_a [6,4]{4,1} + 0", "t_w = view t_a [3]{4} + 1"]
    steps, results = run_pass(*lines, "t_y{1} = call aten.f.default(t_v, t_w)", results="t_y, t_v")
    assert steps == [
        "t_a = allocate f32[6,4]{4,1}",
        LAUNCH,
        lines[3],
        "t_y{1} = call aten.f.default(t_a, t_w)",
    ]
    assert results == ("t_y", "t_a")


def test_the_returned_view_is_preferred():
    lines = [ALLOCATE, LAUNCH, "t_v = view t_a [24]{1} + 0", "t_w = view t_a [4,6]{1,4} + 0"]
    steps, results = run_pass(*lines, "launch 1 k(t_x)", results="t_w")
    assert steps[0] == "t_a = allocate f32[4,6]{1,4}" and results == ("t_a",)
    assert steps[2] == lines[2]


@pytest.mark.parametrize(
    "view", ["[6,4]{4,1} + 4", "[5,4]{4,1} + 0", "[6,4]{0,1} + 0", "[2,3,4]{16,4,1} + 0"]
)
def test_a_view_of_a_part_is_kept(view):
    lines = [ALLOCATE, LAUNCH, f"t_v = view t_a {view}"]
    assert run_pass(*lines, results="t_v") == (lines, ("t_v",))


@pytest.mark.parametrize("more", ["_ = call my.log.default(t_a)", "t_u = view t_a [2]{1} + 0"])
def test_other_readers_keep_the_shape(more):
    lines = [ALLOCATE, LAUNCH, "t_v = view t_a [24]{1} + 0", more]
    assert run_pass(*lines, results="t_v, t_a") == (lines, ("t_v", "t_a"))


def test_an_identity_view_is_removed():
    lines = [ALLOCATE, LAUNCH, "t_v = view t_a [2,3,4]{12,4,1} + 0", "t_w = view t_a [24]{1} + 0"]
    both = "t_y{1} = call aten.f.default(t_v, t_w)"
    steps, _ = run_pass(*lines, both, results="t_y")
    assert steps == [ALLOCATE, LAUNCH, lines[3], both.replace("t_v", "t_a")]
    assert run_pass(*lines, both, results="t_a, t_v")[0] == [*lines, both]


def test_results_have_the_shapes_and_strides_of_eager():
    def run(x):
        y = (x * 2).tanh()
        return y.view(-1), (x + 1).transpose(0, 1), y.sum(0, keepdim=True)

    x = torch.randn(5, 7, requires_grad=True)
    made = tofuse.compile(run)(x)
    for a, b in zip(made, run(x), strict=True):
        assert a.shape == b.shape and a.stride() == b.stride()
        torch.testing.assert_close(a, b)


def test_writing_to_a_saved_result_is_an_error():
    """As in eager: a result that is a view inside the program shares its version counter."""
    x = torch.randn(6, 4, requires_grad=True)
    w = torch.randn(4, 4, requires_grad=True)
    y = tofuse.compile(lambda x, w: (x @ w).view(2, 3, 4).tanh())(x, w)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
