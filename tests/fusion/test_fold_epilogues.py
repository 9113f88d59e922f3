"""The epilogue of a matrix product is in the library's call or in the next kernel."""

import re

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
M, K, N = 9, 16, 12


def make(*shape, dtype=torch.float32, grad=False):
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


FOLDED = {
    "bias": (lambda x, w, b, r: x @ w + b, "aten.addmm.default"),
    "residual": (lambda x, w, b, r: r + x @ w, "aten.addmm.default"),
    "with views": (lambda x, w, b, r: (x @ w + r.t().t()).t(), "aten.addmm.default"),
    "batched": (lambda x, w, b, r: torch.bmm(x[None], w[None]) + r[None], "aten.baddbmm.default"),
}


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("grad", [False, True])
def test_a_lone_addition_is_folded_into_the_call(name, grad):
    fn, target = FOLDED[name]
    args = [make(*s, grad=grad) for s in ((M, K), (K, N), (N,), (M, N))]
    assert_as_eager(fn, *args, rtol=1e-4, atol=1e-5)
    report = tofuse.explain(fn)(*[a.detach() for a in args])
    assert not report.kernels
    (call,) = report.library_calls
    assert call.name == target and call.reason == "library call with its epilogue: add"


NOT_FOLDED = {
    "fused with others": lambda x, w, b, r: (x @ w + b).relu(),
    "read twice": lambda x, w, b, r: (lambda y: (y + b, y))(x @ w),
    "scaled": lambda x, w, b, r: x @ w * 3,
    "a product of products": lambda x, w, b, r: (x @ w) * (r + b),
}


@pytest.mark.parametrize("name", NOT_FOLDED)
def test_other_epilogues_are_in_the_next_kernel(name):
    args = [make(*s) for s in ((M, K), (K, N), (N,), (M, N))]
    assert_as_eager(NOT_FOLDED[name], *args, rtol=1e-4, atol=1e-5)
    report = tofuse.explain(NOT_FOLDED[name])(*args)
    assert len(report.kernels) == 1
    assert [c.reason for c in report.library_calls] == ["library call"]
    (rule,) = {v.rule for v in report.verdicts if not v.fused}
    assert re.fullmatch(r"library call: its epilogue \(\w+\) is in the next kernel", rule)


def test_half_precision_is_rounded_twice_as_in_eager():
    args = [make(*s, dtype=torch.bfloat16) for s in ((M, K), (K, N), (N,))]
    report = tofuse.explain(lambda x, w, b: x @ w + b)(*args)
    assert len(report.kernels) == 1


def test_hints_and_fuel_are_obeyed():
    def separate(x, w, b):
        with tofuse.no_fuse():
            return x @ w + b

    args = [make(*s) for s in ((M, K), (K, N), (N,))]
    assert len(tofuse.explain(separate)(*args).kernels) == 1

    def tail(x, w, b):
        return F.gelu(x @ w + b)

    # without fuel the addition is a kernel of its own although it could be fused
    report = tofuse.explain(tail, fuel=0)(*args)
    assert "aten.mm.default" in [c.name for c in report.library_calls]
