"""Largest and smallest values: nan wherever it stands, infinities, tails, all as eager."""

import math

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
LENGTHS = (1, 5, 16, 37, 64, 200, 1030)
PROGRAMS = {
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "all": lambda x: torch.stack([x.amax(), x.amin()]),
    "outer": lambda x: x.amax(0),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    # 0 / 0 in the lanes behind the end is no element's nan
    "of quotients": lambda x: (x / x.abs()).amax(-1),
}


def rows(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of numbers: one with each special value at each of some places, some of one value."""
    g = torch.Generator().manual_seed(length)
    special, places = (math.nan, math.inf, -math.inf), sorted({0, length // 2, length - 1})
    x = torch.randn(len(special) * len(places) + 5, length, generator=g) + 0.01
    for k, value in enumerate(special):
        for j, place in enumerate(places):
            x[k * len(places) + j, place] = value
    x[-2], x[-3], x[-4] = -math.inf, math.inf, math.nan
    x[-5, 0], x[-5, -1] = math.inf, -math.inf
    return x.to(dtype)


@pytest.mark.broad(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_special_values_in_rows(name, length, dtype):
    x = rows(length, dtype)
    ours, eager = tofuse.compile(PROGRAMS[name], dynamic=False)(x), PROGRAMS[name](x)
    close = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(ours, eager, rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize("place", [0, 17, 4095, 500_000, 999_999])
def test_a_nan_anywhere_in_a_large_tensor(place):
    """Threads' parts and tiles are brought together with their nans."""
    x = torch.randn(1_000_000)
    compiled = tofuse.compile(lambda x: (x.amax(), x.amin()), dynamic=False)
    assert compiled(x) == (x.max(), x.min())
    x[place] = math.nan
    assert all(v.isnan() for v in compiled(x))


def test_cross_entropy_of_special_rows():
    x = rows(1030, torch.float32)
    target = torch.arange(len(x)) % 1030
    program = lambda x, t: F.cross_entropy(x, t, reduction="none")  # noqa: E731
    ours, eager = tofuse.compile(program)(x, target), program(x, target)
    torch.testing.assert_close(ours, eager, rtol=1e-6, atol=1e-6, equal_nan=True)


KEPT = {
    "one axis": lambda x, y: (x * y + x).amax(-1),
    "magnitudes": lambda x, y: torch.linalg.vector_norm(x * y, torch.inf, dim=0),
    "both": lambda x, y: torch.stack(((x * y).amin(-1), (x * y).amax(-1))),
    "scaled": lambda x, y: x * y / (x * y).abs().amax(-1, keepdim=True),
    "of a chain": lambda x, y: ((x * y).sin() + x * y * 0.3).amax(-1),
    "in floats": lambda x, y: ((x * y).sin() * 1.37).float().amax(-1),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", KEPT)
def test_a_maximum_that_was_kept_is_found_again(name, dtype):
    """A maximum is kept as a half; what it was taken of is computed again, rounded as before."""
    values = [torch.randn(33, 40).to(dtype) for _ in range(2)]

    def gradients(fn, kind):
        given = [v.detach().to(kind).requires_grad_() for v in values]
        return torch.autograd.grad(fn(*given).sum(), given)

    ours, eager = gradients(tofuse.compile(KEPT[name]), dtype), gradients(KEPT[name], dtype)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("masked", [-math.inf, -1e9, -1e4, -100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_masked_softmax(masked, dtype):
    def f(x, mask):
        return x.masked_fill(mask, masked).softmax(-1)

    g = torch.Generator().manual_seed(3)
    for shape in ((7, 13), (1, 1), (0, 5), (3, 1031)):
        x = (torch.randn(shape, generator=g) * 9).to(dtype).requires_grad_()
        mask = torch.rand(shape, generator=g) < 0.6
        mask[:, 0] = False
        got, expected = tofuse.compile(f, capture="trace")(x, mask), f(x, mask)
        torch.testing.assert_close(got, expected)
        grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, expected)]
        torch.testing.assert_close(*grads)
