"""Library calls write large results into memory from the pool, where an operator can."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager
from tofuse.runtime.out_variants import out_variant
from tofuse.runtime.pool import POOL

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.parametrize(
    ("target", "expected", "names"),
    [
        ("aten.mm.default", "aten.mm.out", ("out",)),
        ("aten.addmm.default", "aten.addmm.out", ("out",)),
        ("aten.topk.default", "aten.topk.values", ("values", "indices")),
        ("aten.index.Tensor", "aten.index.Tensor_out", ("out",)),
    ],
)
def test_operators_with_a_form_of_their_own(target, expected, names):
    found = out_variant(target)
    assert found is not None and (found.target, found.names) == (expected, names)


@pytest.mark.parametrize(
    "target",
    [
        "aten.convolution.default",  # its form makes the result and copies it
        "aten._fft_c2r.default",  # and so does this one, though it is a kernel of its own
        "aten.view.default",
        "aten.add_.Tensor",
        "tofuse.seed.default",
    ],
)
def test_operators_without(target):
    assert out_variant(target) is None


def image(x):
    return x[: 2 * 3 * 210 * 210].view(2, 3, 210, 210)


# Programs of a vector of 300,000 numbers, and what their plan calls.
CALLS = {
    "aten.mm.out": lambda x: (x.view(600, 500) @ x.view(500, 600)).relu(),
    "aten.addmm.out": lambda x: F.linear(x.view(600, 500), x.view(600, 500), x[:600]).sin(),
    "aten.bmm.out": lambda x: (x.view(3, 500, 200) @ x.view(3, 200, 500)).softmax(-1),
    "aten.cumsum.out": lambda x: x.view(600, 500).cumsum(0) + 1,
    "aten.topk.values": lambda x: x.view(300, 1000).topk(400),
    "aten.max_pool2d_with_indices.out": lambda x: F.max_pool2d(image(x), 6, 1, return_indices=True),
    "aten.avg_pool2d.out": lambda x: F.avg_pool2d(image(x), 3, 1, 1, False, False).exp(),
}


@pytest.mark.parametrize("target", CALLS)
def test_results_are_eagers(target):
    x = torch.rand(300_000, dtype=torch.float64, requires_grad=target != "aten.mm.out")
    assert f"call {target}(" in tofuse.explain(CALLS[target])(x).graphs[0].plan
    assert_as_eager(CALLS[target], x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_returned_product_is_a_tensor_like_eagers(dynamic):
    def f(x, w):
        return x @ w, x.sum()

    x, w = torch.randn(512, 300, requires_grad=True), torch.randn(300, 513)
    compiled = assert_as_eager(f, x, w, rtol=1e-4, atol=1e-3, options={"dynamic": dynamic})
    first, second = compiled(x, w)[0], compiled(x, w)[0]
    assert first.data_ptr() != second.data_ptr() and first.is_contiguous()
    torch.testing.assert_close(first, x @ w, rtol=1e-4, atol=1e-3)


def test_products_come_from_warm_memory():
    x = torch.randn(512, 512)
    compiled = tofuse.compile(lambda x: x @ x @ x)
    for _ in range(3):
        compiled(x)
    before = POOL.stats()
    for _ in range(5):
        compiled(x)
    after = POOL.stats()
    assert after["hits"] - before["hits"] == 10 and after["misses"] == before["misses"]


def test_what_autograd_keeps_is_not_written_over():
    x = torch.randn(512, 512, requires_grad=True)
    compiled = tofuse.compile(lambda x: (x @ x).sin() @ x)
    results = [compiled(x) for _ in range(3)]  # each holds a product for its backward
    (expected,) = torch.autograd.grad(((x @ x).sin() @ x).sum(), x)
    for y in reversed(results):
        (found,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-2)
