"""Maximum, minimum and softmax with nan, infinities and incomplete vectors match eager."""

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
    # 0 / 0 in the lanes after the end must not give nan
    "of quotients": lambda x: (x / x.abs()).amax(-1),
}


def rows(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rows with a special value at the start, middle or end, and rows of one value."""
    g = torch.Generator().manual_seed(length)
    special, positions = (math.nan, math.inf, -math.inf), sorted({0, length // 2, length - 1})
    x = torch.randn(len(special) * len(positions) + 5, length, generator=g) + 0.01
    for k, value in enumerate(special):
        for j, position in enumerate(positions):
            x[k * len(positions) + j, position] = value
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
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(ours, eager, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("position", [0, 17, 4095, 500_000, 999_999])
def test_nan_anywhere_in_large_tensor(position):
    """Partial results of threads and tiles are combined with their nans."""
    x = torch.randn(1_000_000)
    compiled = tofuse.compile(lambda x: (x.amax(), x.amin()), dynamic=False)
    assert compiled(x) == (x.max(), x.min())
    x[position] = math.nan
    assert all(v.isnan() for v in compiled(x))


def test_cross_entropy_of_special_values():
    x = rows(1030, torch.float32)
    target = torch.arange(len(x)) % 1030
    program = lambda x, t: F.cross_entropy(x, t, reduction="none")  # noqa: E731
    ours, eager = tofuse.compile(program)(x, target), program(x, target)
    torch.testing.assert_close(ours, eager, rtol=1e-6, atol=1e-6, equal_nan=True)


SAVED_MAXIMA = {
    "one axis": lambda x, y: (x * y + x).amax(-1),
    "norm": lambda x, y: torch.linalg.vector_norm(x * y, torch.inf, dim=0),
    "both": lambda x, y: torch.stack(((x * y).amin(-1), (x * y).amax(-1))),
    "scaled": lambda x, y: x * y / (x * y).abs().amax(-1, keepdim=True),
    "of a chain": lambda x, y: ((x * y).sin() + x * y * 0.3).amax(-1),
    "in float32": lambda x, y: ((x * y).sin() * 1.37).float().amax(-1),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SAVED_MAXIMA)
def test_backward_recomputes_operand_of_saved_maximum(name, dtype):
    """The saved maximum has half precision; its recomputed operand must be rounded equally."""
    values = [torch.randn(33, 40).to(dtype) for _ in range(2)]

    def gradients(fn, kind):
        leaves = [v.detach().to(kind).requires_grad_() for v in values]
        return torch.autograd.grad(fn(*leaves).sum(), leaves)

    ours, eager = (
        gradients(tofuse.compile(SAVED_MAXIMA[name]), dtype),
        gradients(SAVED_MAXIMA[name], dtype),
    )
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("fill_value", [-math.inf, -1e9, -1e4, -100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masked_softmax(fill_value, dtype):
    def f(x, mask):
        return x.masked_fill(mask, fill_value).softmax(-1)

    g = torch.Generator().manual_seed(3)
    for shape in ((7, 13), (1, 1), (0, 5), (3, 1031)):
        x = (torch.randn(shape, generator=g) * 9).to(dtype).requires_grad_()
        mask = torch.rand(shape, generator=g) < 0.6
        mask[:, 0] = False
        got, expected = tofuse.compile(f, capture="trace")(x, mask), f(x, mask)
        torch.testing.assert_close(got, expected)
        grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, expected)]
        torch.testing.assert_close(*grads)
