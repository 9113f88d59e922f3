"""Sums, means, variances and products of any length are as accurate as in eager."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import tofuse
from tofuse.ir.staged_sum import (
    FIRST_STAGE_TERMS,
    STAGE_FACTOR,
    stage_count,
    stage_period,
)

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
HALF_ULP = 2.0**-24

Reduction = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
REDUCTIONS: dict[str, Reduction] = {
    "sum": lambda x, dims: x.sum(dims),
    "mean": lambda x, dims: x.mean(dims),
    "var": lambda x, dims: x.var(dims),
}
AXES: dict[str, tuple[Callable[[int, int], tuple[int, ...]], tuple[int, ...]]] = {
    "inner": (lambda n, c: (c, n), (1,)),
    "outer": (lambda n, c: (n, c), (0,)),
    "middle": (lambda n, c: (c // 4, n, 4), (1,)),
    "outer two": (lambda n, c: (5, n, c), (0, 1)),
    "inner two": (lambda n, c: (c, n, 3), (1, 2)),
    "outer and inner": (lambda n, c: (n, c, 6), (0, 2)),
}


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the root mean square error relative to that of the results."""
    return float((result.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def assert_accurate(x: torch.Tensor, program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Check that the error is at most that of eager, plus a quarter and one rounding."""
    exact = program(x.double())
    ours, eager = (
        relative_error(f(x), exact) for f in (tofuse.compile(program, dynamic=False), program)
    )
    assert ours <= 1.25 * eager + HALF_ULP, f"{ours:.2e}, eager {eager:.2e}"


@pytest.mark.parametrize("mean", [0.3, 0.0])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("length", [1, 7, 1000, 8191, 1_000_000])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_are_as_accurate_as_eager(name, length, axes, mean):
    """Issue: reductions must be at least as accurate as in eager, compared with float64."""
    if name == "var" and (length == 1 or mean == 0.0):
        return
    shape, dims = AXES[axes]
    x = torch.randn(shape(length, 64 if length < 1_000_000 else 8)) + mean
    assert_accurate(x, lambda x: REDUCTIONS[name](x, dims))


@pytest.mark.parametrize("axes", ["inner", "outer"])
@pytest.mark.parametrize("length", [7, 1000, 8191])
def test_products(length, axes):
    """A product has one rounding per factor, in any order."""
    shape, dims = AXES[axes]
    x = torch.exp(torch.randn(shape(length, 64)) / length**0.5)
    assert_accurate(x, lambda x: x.prod(dims[0]))


@pytest.mark.parametrize("axes", ["inner", "outer", "outer two"])
def test_dynamic_length(axes):
    """A sum of dynamic length is staged like a long one."""
    shape, dims = AXES[axes]
    program = lambda x: x.sum(dims)  # noqa: E731
    compiled = tofuse.compile(program, dynamic=True)
    for length in (900, 8191):
        x = torch.randn(shape(length, 64)) + 0.3
        exact = program(x.double())
        assert (
            relative_error(compiled(x), exact)
            <= 1.25 * relative_error(program(x), exact) + HALF_ULP
        )


def test_column_sums_of_layer_norm_gradient():
    """Rows and columns are summed in one pass, and the column sums are staged, too."""

    def program(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        h = (x - x.mean(1, keepdim=True)) * x.var(1, keepdim=True).add(1e-5).rsqrt()
        return torch.stack([(g * h + g).sum(0), g.sum(0)])

    x, g = torch.randn(8192, 256), torch.randn(8192, 256) + 0.3
    exact = program(x.double(), g.double())
    ours = relative_error(tofuse.compile(program)(x, g), exact)
    assert ours <= 1.25 * relative_error(program(x, g), exact) + HALF_ULP


@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
def test_float64(dim):
    """Compare with sums in long double."""
    x = torch.randn(8192, 64, dtype=torch.float64) + 0.3
    exact = torch.from_numpy(np.asarray(x.numpy().astype("longdouble").sum(dim), dtype="float64"))
    program = lambda x: x.sum(dim)  # noqa: E731
    ours, eager = (
        relative_error(tofuse.compile(program)(x), exact),
        relative_error(program(x), exact),
    )
    assert ours <= 1.25 * eager + 2.0**-53


def test_half_precision_accumulates_in_float32():
    x = (torch.randn(8192, 64) + 0.3).bfloat16()
    assert_accurate(x, lambda x: torch.stack([x.sum(0)[:64], x[:64].sum(1)]))


@pytest.mark.parametrize("size", [4, 20])
def test_sums_over_different_axes_of_a_cube(size):
    """Sums over different axes of one argument must not share a loop."""
    x = torch.randn(size, size, size)
    assert_accurate(x, lambda x: x.sum(0) + x.sum(1))
    assert_accurate(x, lambda x: x.sum(0) + x.sum(1) + x.sum(2))
    assert_accurate(x[0], lambda x: x.sum(0) * x.sum(1))


def test_staged_sum_with_another_pass_over_its_loop():
    """Only the pass that adds to the mean may advance its stages."""
    x = torch.randn(3, 200, 100, 5)
    strict = tofuse.compile(lambda x: (x.exp().sum((1, 3)), x.mean((0, 2))), strict=True)
    sums, means = strict(x)
    torch.testing.assert_close(sums, x.exp().sum((1, 3)))
    torch.testing.assert_close(means, x.mean((0, 2)))


def test_stage_count():
    """Few terms need no stages, and only the last accumulator may exceed the limit of terms."""
    assert [
        stage_count(n)
        for n in (
            1,
            FIRST_STAGE_TERMS,
            FIRST_STAGE_TERMS + 1,
            FIRST_STAGE_TERMS * STAGE_FACTOR,
            FIRST_STAGE_TERMS * STAGE_FACTOR + 1,
        )
    ] == [*(0, 0, 1, 1, 2)]
    for n in (10, 1000, 10**6):
        count = stage_count(n)
        assert count == 0 or n <= stage_period(count) < n * STAGE_FACTOR
