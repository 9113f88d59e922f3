"""Reductions of short rows, of pairs of rows and of middle axes, at odd, unit and empty sizes."""

import pytest
import torch

from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
TOLERANCES = {torch.float32: 2e-4, torch.float64: 1e-9, torch.bfloat16: 8e-2, torch.float16: 2e-2}


def two_reductions(x):
    return (x - x.amax(-1, keepdim=True)) / (1 + x.abs().sum(-1, keepdim=True))


@pytest.mark.broad(6)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    "rows, length", [(1, 9), (0, 10), (7, 11), (257, 16), (31, 14), (1009, 10)]
)
def test_strided_short_rows(rows, length, dtype):
    x = torch.randn(rows, 2 * length).to(dtype)[:, ::2].detach().requires_grad_()
    for program in (two_reductions, lambda x: x.log_softmax(-1)):
        assert_as_eager(program, x, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.broad(6)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("length", [11, 13, 17, 18, 21, 24, 27, 32])
def test_contiguous_short_rows(length, dtype):
    programs = (two_reductions, lambda x: x.log_softmax(-1), lambda x: x.softmax(-1))
    for rows, program in [(1009, p) for p in programs] + [(1, two_reductions), (33, programs[1])]:
        x = torch.randn(rows, length).to(dtype).requires_grad_()
        x.data[0, 0], x.data[-1, -1] = 30, -30
        assert_as_eager(program, x, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.broad(6)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("a, b, c", [(3, 5, 7), (1, 1, 1), (17, 33, 2), (0, 4, 3), (64, 65, 31)])
def test_pairs_of_rows_and_middle_axes(a, b, c, dtype):
    x, y = (torch.randn(s).to(dtype).requires_grad_() for s in ((c, a), (b, c)))
    tolerances = {"rtol": 4 * TOLERANCES[dtype], "atol": 4 * TOLERANCES[dtype]}
    assert_as_eager(lambda x, y: ((x.t()[:, None] - y[None]) ** 2).sum(-1), x, y, **tolerances)
    z = torch.randn(c, b, a).to(dtype).transpose(0, 2).detach().requires_grad_()
    assert_as_eager(lambda z: z.softmax(1) - z.mean(1, keepdim=True), z, **tolerances)
