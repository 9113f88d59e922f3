"""What PyTorch's own views look at is not written over while they are looked through."""

import pytest
import torch

from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def windows(x, y):
    v = x @ y
    u, w = v.unfold(-1, 3, 1), torch.relu(v)
    return u * (1 + w.sum()), w


def windows_of_a_kernels_result(x, y):
    v = x.softmax(-1)
    u, w = v.unfold(-1, 3, 1).unfold(0, 2, 1), v * (v @ y)
    return u + w.sum(), w


def strided(x, y):
    v = (x @ y).cumsum(0)
    u, w = v.as_strided((4, 4), (5, 1), 6), v.sin()
    return u.exp() + w.sum(), w


def bits(x, y):
    v = x @ y
    u, w = v.view(torch.int32), torch.relu(v)
    return u ^ w.sum().int(), w


def pairs(x, y):
    v = x[:, :2] @ y[:2, :2]
    u, w = torch.view_as_complex(v), v.exp()
    return u * w.sum(), w


def returned(x, y):
    return torch.special.i1(x)[-1].as_strided((1, 3), (1, 1)) + 0 * y.sum(), x.sin() * y


def small_and_side_by_side(x, y):
    v = x @ y
    u = v.unfold(-1, 2, 2)
    return u + 1, v.relu() * 2, u.sum(-1), v.exp()


PROGRAMS = [windows, windows_of_a_kernels_result, strided, bits, pairs, returned]


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [*PROGRAMS, small_and_side_by_side], ids=lambda f: f.__name__)
def test_as_eager(program, grad, capture):
    x, y = (torch.randn(5, 5, requires_grad=grad and program is not bits) for _ in range(2))
    assert_as_eager(program, x, y, rtol=1e-4, atol=1e-4, options={"capture": capture})
