"""Diagonals of contiguous rows are views, and their gradients are pointwise."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
CASES = [
    ((5, 7), 0, 1),
    ((7, 5), 1, 0),
    ((3, 4, 4), 1, 2),
    ((3, 4, 5), 0, 2),
    ((2, 3, 4, 5), 3, 1),
]


@pytest.mark.parametrize("shape, first, second", CASES)
@pytest.mark.parametrize("offset", [-9, -2, 0, 1, 3])
def test_matches_eager(shape, first, second, offset):
    def program(x):
        transposed = (x * 2).transpose(-1, -2)
        pieces = (x, x * 2, transposed.contiguous().transpose(-1, -2))
        return [torch.diagonal(p, offset, first, second) * 3 for p in pieces]

    for dtype in (torch.float32, torch.float64):
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        assert_as_eager(program, x, options={"capture": "trace"})


def test_single_diagonal_needs_no_kernel():
    x = torch.randn(5, 5)
    report = tofuse.explain(lambda x: x.diagonal())(x)
    assert not report.kernels and not report.library_calls
    assert tofuse.compile(lambda x: x.diagonal())(x).data_ptr() == x.data_ptr()


def test_traces_and_diagonals_of_products():
    def decorrelation_loss(z):
        c = (z - z.mean(0)).t() @ z / len(z)
        d = c.diagonal().add(-1).pow(2).sum()
        return d + (c.pow(2).sum() - c.diagonal().pow(2).sum()) + c.trace()

    z = torch.randn(30, 16, requires_grad=True)
    assert_as_eager(decorrelation_loss, z, rtol=1e-4, atol=1e-4)
    for dtype in (torch.float32, torch.float64, torch.int32):
        x = torch.arange(35).view(5, 7).to(dtype)
        assert_as_eager(torch.trace, x, options={"capture": "trace"})
