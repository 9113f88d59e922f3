"""Library calls with an out variant write large results into memory from the pool."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager
from tofuse.backends.cpu.runtime.pool import POOL
from tofuse.runtime.out_variants import out_variant

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.parametrize(
    ("target", "expected", "names"),
    [
        ("aten.mm.default", "aten.mm.out", ("out",)),
        ("aten.addmm.default", "aten.addmm.out", ("out",)),
        ("aten.topk.default", "aten.topk.values", ("values", "indices")),
        ("aten.index.Tensor", "aten.index.Tensor_out", ("out",)),
        ("aten.scatter_add.default", "aten.scatter_add.out", ("out",)),
        ("aten.index_put.default", "aten.index_put_.default", ()),  # into its first operand
    ],
)
def test_operators_with_an_out_variant(target, expected, names):
    variant = out_variant(target)
    assert variant is not None and (variant.target, variant.names) == (expected, names)


@pytest.mark.parametrize(
    "target",
    [
        "aten.convolution.default",  # its out variant makes the result and copies it
        "aten._fft_c2r.default",  # so does this one, although it has a CPU kernel
        "aten.view.default",
        "aten.add_.Tensor",
        "tofuse.seed.default",
    ],
)
def test_operators_without_a_useful_out_variant(target):
    assert out_variant(target) is None


def image(x):
    return x[: 2 * 3 * 210 * 210].view(2, 3, 210, 210)


ROWS = torch.arange(0, 600, 2)


# Programs of a vector of 300,000 numbers, by the operator that their plan calls.
CALLS = {
    "aten.mm.out": lambda x: (x.view(600, 500) @ x.view(500, 600)).relu(),
    "aten.addmm.out": lambda x: F.linear(x.view(600, 500), x.view(600, 500), x[:600]).sin(),
    "aten.bmm.out": lambda x: (x.view(3, 500, 200) @ x.view(3, 200, 500)).softmax(-1),
    "aten.index_put_.default": lambda x: torch.index_put(
        x.view(600, 500).exp(), (ROWS,), x[:150000].view(300, 500), accumulate=True
    ).sin(),
    "aten.scatter_add.out": lambda x: torch.scatter_add(
        x.view(600, 500).exp(), 0, ROWS[:, None].expand(300, 500), x[:150000].view(300, 500)
    ).sin(),
    "aten.topk.values": lambda x: x.view(300, 1000).topk(400),
    "aten.max_pool2d_with_indices.out": lambda x: F.max_pool2d(image(x), 6, 1, return_indices=True),
    "aten.avg_pool2d.out": lambda x: F.avg_pool2d(image(x), 6, 1).exp(),
}


@pytest.mark.parametrize("target", CALLS)
def test_results_match_eager(target):
    x = torch.rand(300_000, dtype=torch.float64, requires_grad=target != "aten.mm.out")
    assert f"call {target}(" in tofuse.explain(CALLS[target])(x).graphs[0].plan
    assert_as_eager(CALLS[target], x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_returned_product_is_a_new_contiguous_tensor(dynamic):
    def f(x, w):
        return x @ w, x.sum()

    x, w = torch.randn(512, 300, requires_grad=True), torch.randn(300, 513)
    compiled = assert_as_eager(f, x, w, rtol=1e-4, atol=1e-3, options={"dynamic": dynamic})
    first, second = compiled(x, w)[0], compiled(x, w)[0]
    assert first.data_ptr() != second.data_ptr() and first.is_contiguous()
    torch.testing.assert_close(first, x @ w, rtol=1e-4, atol=1e-3)


def test_products_are_allocated_from_the_pool():
    x = torch.randn(512, 512)
    compiled = tofuse.compile(lambda x: x @ x @ x, precision="eager")  # as library calls
    for _ in range(3):
        compiled(x)
    before = POOL.stats()
    for _ in range(5):
        compiled(x)
    after = POOL.stats()
    assert after["hits"] - before["hits"] == 10 and after["misses"] == before["misses"]


def test_saved_tensors_are_not_overwritten():
    x = torch.randn(512, 512, requires_grad=True)
    compiled = tofuse.compile(lambda x: (x @ x).sin() @ x)
    results = [compiled(x) for _ in range(3)]  # each saves a product for its backward
    (expected,) = torch.autograd.grad(((x @ x).sin() @ x).sum(), x)
    for y in reversed(results):
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize("operand", ["values", "indices"])
def test_an_operand_that_is_read_twice_is_not_updated_in_place(operand):
    order = torch.randperm(40_000)
    x = torch.randn(40_000, 3)

    def program(x, order):
        if operand == "values":
            return torch.index_put(x, (order,), x) + 1
        return torch.index_put(order, (order,), torch.arange(40_000)) + 1

    assert_as_eager(program, x, order)


def updates(x, i, v):
    added = torch.index_put(x.mul(2), (i,), v, accumulate=True)
    columns = (i % max(1, len(x)))[None, :].expand(x.shape[1], -1)
    scattered = torch.scatter_add(x.t().sin(), 1, columns, v.t())
    copied = torch.zeros_like(x).index_copy(0, i[:1], v[:1])
    return added.relu(), scattered.t() * added, copied + added, x.index_put((i,), v).exp()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["plain", "transposed", "strided"])
@pytest.mark.parametrize("shape", [(1009, 353, 401), (1, 1, 1), (512, 700, 0), (2, 200_001, 2)])
def test_updates_in_other_layouts(shape, layout, dtype):
    rows, columns, count = shape
    x = torch.randn(rows, 2 * columns, dtype=dtype)[:, ::2]
    if layout != "strided":
        x = x.contiguous() if layout == "plain" else x.t().contiguous().t()
    v = torch.randn(count, columns, dtype=dtype, requires_grad=True)
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
    indices = torch.randperm(rows)[:count]
    assert_as_eager(updates, x.requires_grad_(), indices, v, rtol=tolerance, atol=tolerance)
