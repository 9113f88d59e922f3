"""Pooling and its gradient become kernels with eager's results."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
OPTIONS: list[Any] = list(
    itertools.product((2, 3, (2, 3)), (None, 1, 3), (0, 1), (1, 2), (False, True))
)


def special(*shape, dtype=torch.float32):
    x = torch.randn(shape)
    return torch.where(x > 1.6, torch.nan, torch.where(x < -1.2, -torch.inf, x)).to(dtype)


def assert_same_as_eager(f, x):
    try:
        expected = f(x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error).split(",")[0].split("(")[0]):
            tofuse.compile(f, capture="trace")(x)
        return
    got = tofuse.compile(f, capture="trace")(x)
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("shape", [(2, 3, 9, 11), (3, 8, 8), (2, 16, 12, 7)], ids=str)
def test_max_pooling_is_as_eager(shape, some):
    x = special(*shape)
    forms = [x, x.to(memory_format=torch.channels_last)] if x.dim() == 4 else [x]
    for x, (size, step, padding, dilation, ceil) in some(itertools.product(forms, OPTIONS), 5):
        assert_same_as_eager(lambda x: F.max_pool2d(x, size, step, padding, dilation, ceil), x)  # noqa: B023


@pytest.mark.parametrize("shape", [(2, 3, 9, 11), (2, 16, 12, 7)], ids=str)
def test_average_pooling_is_as_eager(shape, some):
    x, counts = torch.randn(shape), [(True, None), (False, None), (True, 5)]
    for (size, step, padding, dilation, ceil), (count_pad, divisor) in some(
        itertools.product(OPTIONS, counts), 5
    ):
        if dilation == 1:
            options = (size, step, padding, ceil, count_pad, divisor)
            assert_same_as_eager(lambda x: F.avg_pool2d(x, *options), x)  # noqa: B023


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16])
def test_other_dtypes(dtype):
    x = special(2, 5, 14, 17, dtype=dtype)
    assert_same_as_eager(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    assert_same_as_eager(lambda x: F.avg_pool2d(x, 3, 2, 1), torch.randn(2, 5, 14, 17).to(dtype))
    assert_same_as_eager(lambda x: F.max_pool1d(x, 3, 2, 1), x[0])
    assert_same_as_eager(lambda x: F.avg_pool1d(x, 3, 2, 1), torch.randn(3, 9).to(dtype))


def test_a_pool_fuses_with_its_neighbours():
    x = torch.randn(2, 32, 16, 16).to(memory_format=torch.channels_last)
    report = tofuse.explain(lambda x: F.max_pool2d(x * 2, 2) + 1)(x)
    assert len(report.kernels) == 1 and not report.library_calls


def test_indices_that_are_returned():
    x = special(2, 3, 8, 10)

    def f(x):
        values, places = F.max_pool2d(x, 2, return_indices=True)
        unpooled = F.max_unpool2d(torch.ones_like(values), places, [2, 2])
        return values + 1, places, F.max_pool2d(x, 2) * 2, unpooled

    for got, expected in zip(tofuse.compile(f)(x), f(x), strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.broad(4)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 9, 11), (2, 16, 12, 8)], ids=str)
def test_indices_and_gradients_are_as_eager(shape, channels_last, some):
    """Also for windows of equal values, infinities or NaNs only."""
    for size, step, padding, dilation, ceil in some(OPTIONS, 6):
        x = special(*shape).round(decimals=0)
        x = x.to(memory_format=torch.channels_last) if channels_last else x

        def f(x):
            return F.max_pool2d(x, size, step, padding, dilation, ceil, return_indices=True)  # noqa: B023

        try:
            f(x)
        except RuntimeError:
            continue  # padding of more than half a window, or nothing left
        assert torch.equal(assert_same_gradient(f, x)[1], f(x)[1])
        if dilation == 1:
            assert_same_gradient(lambda x: (F.avg_pool2d(x, size, step, padding, ceil),), x)  # noqa: B023


LAYOUTS = {
    "transposed": lambda: torch.randn(2, 3, 17, 13).transpose(2, 3),
    "permuted": lambda: torch.randn(17, 13, 3, 2).permute(3, 2, 0, 1),
    "sliced": lambda: torch.randn(2, 6, 20, 31)[:, ::2, 1:18, ::2],
    "expanded": lambda: torch.randn(1, 3, 12, 12).expand(4, 3, 12, 12),
    "nothing": lambda: torch.randn(0, 3, 9, 9),
    "one": lambda: torch.randn(1, 1, 5, 5),
    "doubles": lambda: torch.randn(2, 5, 16, 15).double(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_any_layout(layout):
    x = LAYOUTS[layout]()
    assert_same_gradient(lambda x: F.max_pool2d(x * 2, (5, 2), (2, 3), (2, 1), 1, True, True), x)
    assert_same_gradient(lambda x: (F.max_pool2d(x.relu(), 2),), x)
    assert_same_gradient(lambda x: (F.avg_pool2d(x, (1, 4), (1, 2)),), x)


def test_batches_of_any_size():
    def f(x):
        return F.max_pool2d(x.sin(), 3, 2, 1)

    compiled = tofuse.compile(f)
    for n in (2, 7, 1, 5):
        inner = torch.randn(n, 4, 12, 10, requires_grad=True)
        outer = inner.detach().clone().requires_grad_()
        compiled(inner).square().sum().backward()
        f(outer).square().sum().backward()
        torch.testing.assert_close(inner.grad, outer.grad)


def assert_same_gradient(f, x):
    inner, outer = (x.detach().requires_grad_() for _ in range(2))
    got, expected = tofuse.compile(f, capture="trace")(inner), f(outer)
    torch.testing.assert_close(got[0], expected[0], equal_nan=True)
    gradient = torch.randn_like(expected[0])
    (ours,) = torch.autograd.grad(got[0], inner, gradient)
    (eagers,) = torch.autograd.grad(expected[0], outer, gradient)
    torch.testing.assert_close(ours, eagers)
    assert ours.stride() == eagers.stride()
    return got


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_a_gradient_is_one_kernel(pool):
    x = torch.randn(2, 32, 16, 16, requires_grad=True)
    report = tofuse.explain(lambda x: pool(x * 2, 2) + 1)(x)
    assert len(report.kernels) == 2 and not report.library_calls


def test_padding_in_a_net_is_not_materialized():
    net = nn.Sequential(
        *(nn.Conv2d(3, 32, 7, 2, 3), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.MaxPool2d(3, 2, 1), nn.Conv2d(32, 32, 3, padding=1), nn.AvgPool2d(2)),
        *(nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.AvgPool2d(3, 2)),
    )
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's lack it
    x = torch.randn(8, 3, 96, 96).to(memory_format=torch.channels_last)
    report = tofuse.explain(net)(x)
    assert ("pad",) not in [r.ops for r in report.graphs[0].regions]


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_gradients_of_changing_sizes(pool):
    compiled = tofuse.compile(lambda x: pool(x.tanh(), 3, 2, 1).exp())
    for n in (8, 9, 15, 16):
        x = torch.randn(2, 3, n, n + 2, requires_grad=True)
        y = pool(x.tanh(), 3, 2, 1).exp()
        expected = torch.autograd.grad(y.sum(), x)[0]
        got = compiled(x)
        torch.testing.assert_close(got, y)
        torch.testing.assert_close(torch.autograd.grad(got.sum(), x)[0], expected)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), y)


@pytest.mark.parametrize("shape", [(2, 3, 12, 8), (3, 12, 8), (2, 16, 12, 7)], ids=str)
@pytest.mark.parametrize("size", [(3, 4), (12, 8), (1, 7), (5, 3), 1])
@pytest.mark.parametrize("channels_last", [False, True])
def test_adaptive_average_pooling_is_as_eager(shape, size, channels_last):
    x = torch.randn(shape)
    if channels_last and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    for dtype in (torch.float32, torch.bfloat16):
        x = x.to(dtype).detach().requires_grad_()
        compiled = tofuse.compile(lambda x: F.adaptive_avg_pool2d(x, size), capture="trace")
        y, wanted = compiled(x), F.adaptive_avg_pool2d(x, size)
        torch.testing.assert_close(y, wanted)
        strides = [
            [s for n, s in zip(z.shape, z.stride(), strict=True) if n > 1] for z in (y, wanted)
        ]
        assert strides[0] == strides[1]
        dy = torch.randn_like(wanted)
        (got,), (expected,) = (torch.autograd.grad(z, x, dy) for z in (y, wanted))
        torch.testing.assert_close(got, expected)


def test_adaptive_average_pooling_of_equal_windows_is_kernels():
    def f(x):
        return F.adaptive_avg_pool2d(x.relu(), 7).flatten(1) * 2

    x = torch.randn(2, 8, 28, 28, requires_grad=True)
    report = tofuse.explain(f)(x)
    assert not report.library_calls and len(report.kernels) == 2
