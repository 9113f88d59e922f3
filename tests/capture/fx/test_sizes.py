"""Symbolic strides: torch's expressions for one size become one polynomial."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def pooled(x):
    y = F.avg_pool1d(x, 2)
    return y, y.flatten(-2), y[1::2, ::2]


def raveled(x):
    y = x[1:, 1:].ravel()
    return y, y.expand(3, *y.shape)


def cube(x):
    y = torch.copysign(x, x)
    return y.flatten().mul_(-1), y


def square(x):
    return cube(x[: x.shape[1]])


@pytest.mark.parametrize("program", [pooled, raveled, cube, square], ids=lambda f: f.__name__)
def test_views_stay_views(program):
    """Torch has `max(1, n)` and `n**3 // n` as strides of dense tensors."""
    compiled = tofuse.compile(program, dynamic=True, specialize=False)
    for size in (4, 7, 2):
        x = torch.randn(size, size, size) if program is cube else torch.randn(size + 1, size)
        got, expected = compiled(x), program(x)
        torch.testing.assert_close(got, expected)
        for a, b in zip(got, expected, strict=True):
            assert a.stride() == b.stride() or min(a.shape) < 2
        shared = [
            len({t.untyped_storage().data_ptr() for t in results}) for results in (got, expected)
        ]
        assert shared[0] == shared[1]


def test_empty_tensors():
    compiled = tofuse.compile(raveled, dynamic=True, specialize=False)
    for shape in ((4, 6), (1, 8), (5, 1), (5, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), raveled(x))
