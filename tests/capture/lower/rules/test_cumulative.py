"""Cumulative operators become kernels with eager's results, and so do their gradients."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
SHAPES = ((), (1,), (0,), (37,), (5, 3), (17, 33), (3, 5, 7), (4, 0, 3), (2, 64, 48))
PROGRAMS = {
    "cumsum": lambda x, d: x.cumsum(d),
    "cumprod": lambda x, d: (x * 0.1 + 1).cumprod(d),
    "cummax": lambda x, d: x.cummax(d).values,
    "cummin": lambda x, d: x.cummin(d).values * 2,
    "logcumsumexp": lambda x, d: x.logcumsumexp(d),
    "from the end": lambda x, d: x.flip(d).cumsum(d).flip(d) if x.dim() else x.cumsum(d),
    "among others": lambda x, d: (x * 2 + 1).cumsum(d) * x.exp(),
    "after a softmax": lambda x, d: x.softmax(d).cumsum(d) < 0.9,
    "of a sum": lambda x, d: x.cumsum(d).sum(d, keepdim=True) + x.cumsum(d),
    "of a scan": lambda x, d: x.cumsum(d).cumsum(-1),
    "in both directions": lambda x, d: x.cumsum(d) + x.cumsum(d).flip(-1 if x.dim() else ()),
    "sliced": lambda x, d: x.cumsum(d)[..., 1:] - x.cumsum(d)[..., :-1] if x.dim() else x,
    "reshaped": lambda x, d: x.cumsum(d).reshape(-1) * 2,
    "of a constant": lambda x, d: torch.ones(x.shape).cumsum(d) * x,
    "of a transpose": lambda x, d: x.T.cumsum(d) if x.dim() == 2 else x.cumsum(d),
}


def compare(f, *args, **tolerance):
    expected = f(*args)
    got = tofuse.compile(f, capture="trace")(*args)
    torch.testing.assert_close(got, expected, equal_nan=True, **tolerance)
    assert (got.dtype, got.stride()) == (expected.dtype, expected.stride())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_cumulative_operators_are_as_eager(name, dtype):
    for shape in SHAPES:
        x = torch.randn(shape, dtype=dtype)
        for dim in {0, -1, len(shape) // 2 if shape else 0}:
            compare(lambda x, dim=dim: PROGRAMS[name](x, dim), x)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
)
def test_other_dtypes(dtype):
    x = (torch.randn(9, 33) * 3).to(dtype)
    for dim in (0, 1):
        compare(lambda x, dim=dim: x.cumsum(dim), x)
        compare(lambda x, dim=dim: x.cumsum(dim, dtype=torch.float32), x)
        compare(lambda x, dim=dim: x.cumsum(dim, dtype=torch.int16), x)
        if dtype is not torch.bool:
            compare(lambda x, dim=dim: x.cummax(dim).values, x)
        if dtype.is_floating_point:
            tolerance = {"rtol": 2e-2, "atol": 2e-2}  # eager rounds every step
            compare(lambda x, dim=dim: x.logcumsumexp(dim), x, **tolerance)


def test_sums_are_as_exact_as_eager():
    """Both accumulate in float64, so that long sums of float32 are rounded once."""
    x = torch.rand(1 << 20)
    got = tofuse.compile(lambda x: x.cumsum(0), capture="trace")(x)
    exact = x.double().cumsum(0)
    assert ((got - exact).abs() / exact).max() < 2**-23


def test_the_indices_of_an_extremum_are_eagers():
    x = torch.randn(7, 40).round()
    for got, expected in zip(
        tofuse.compile(lambda x: x.cummax(1), capture="trace")(x), x.cummax(1), strict=True
    ):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "among others"])
def test_gradients(name, dim):
    x = torch.randn(13, 29, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(13, 29, dtype=torch.float64)
    (expected,) = torch.autograd.grad(PROGRAMS[name](x, dim), x, grad)
    compiled = tofuse.compile(lambda x: PROGRAMS[name](x, dim))
    (got,) = torch.autograd.grad(compiled(x), x, grad)
    torch.testing.assert_close(got, expected)


def test_the_gradient_of_a_sum_is_one_kernel():
    x = torch.randn(64, 300, requires_grad=True)
    report = tofuse.explain(lambda x: (x.sin().cumsum(1) * x).sum())(x)
    backward = [k for k in report.kernels if "cumsum" in k.loops and " down" in k.loops]
    assert len(backward) == 1


def test_sizes_that_change():
    compiled = tofuse.compile(lambda x: (x + 1).cumsum(-1) * 2, dynamic=True)
    for shape in ((5, 7), (1, 70), (9, 1), (2, 300)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), (x + 1).cumsum(-1) * 2)


def test_tensors_that_are_not_contiguous():
    x = torch.randn(40, 6, 30)
    for view in (x.transpose(0, 2), x[::2, :, 3:], x[:, 1], x[0, 0].expand(4, 30)):
        for dim in (0, -1):
            compare(lambda x, dim=dim: x.cumsum(dim), view)


SHIFTED = {
    "padded": lambda x: F.pad((x * 2).cumsum(1)[1:], (0, 0, 3, 5)) + 1,
    "rolled": lambda x: torch.roll((x * 2).cumsum(1), 2, 0) + 1,
    "in a concat": lambda x: torch.cat([x, (x * 2).cumsum(1)[1:]], 0) + 1,
    "far away": lambda x: F.pad((x * 2).cumsum(1)[1:], (0, 0, 40000, 40000)) + 1,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SHIFTED)
def test_rows_beyond_the_tensor_are_not_read(name, dynamic):
    x = torch.randn(400, 100)
    got = tofuse.compile(SHIFTED[name], dynamic=dynamic)(x)
    torch.testing.assert_close(got, SHIFTED[name](x))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_scan_that_several_reductions_read(dim):
    def f(x):
        c = (x * 2).cummax(dim).values
        d = c - c.mean(2, keepdim=True)
        return c / (d * d).mean((1, 2), keepdim=True)

    compare(f, torch.randn(4, 6, 40), rtol=1e-4, atol=1e-4)


def test_products_of_half_precision_do_not_overflow():
    x = torch.tensor([[1e-20, 1e20, 1e20, 1e-20] * 8]).bfloat16()
    compare(lambda x: x.cumprod(1) * 1, x)
