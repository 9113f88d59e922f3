"""Sizes read from tensor arguments."""

import pytest
import torch

import tofuse

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("error:tofuse leaves"),
]


def masked(x, lengths):
    mask = torch.arange(lengths.max()) < lengths[:, None]
    return (x[:, : mask.shape[1]].sin() * mask).sum(1)


def filled(x, lengths):
    count = lengths.sum()
    torch._dynamo.graph_break()
    return torch.zeros(count).add_(2) * torch.arange(count) + count, x * 2


@pytest.mark.parametrize("fn", [masked, filled])
def test_size_from_a_reduction(fn):
    compiled = tofuse.compile(fn)
    for longest in (5, 7, 9):
        x = torch.randn(3, 12, requires_grad=True)
        lengths = torch.tensor([2, longest, 4])
        found, wanted = compiled(x, lengths), fn(x, lengths)
        torch.testing.assert_close(found, wanted)
        both = [r if fn is masked else r[1] for r in (found, wanted)]
        torch.testing.assert_close(*[torch.autograd.grad(r.sum(), x)[0] for r in both])


def shortened(x, count):
    y = x.narrow(0, 0, count) * 2
    return (y.sin() + x.new_ones(count, 1)).view(count, 2, -1).mean(1) * count


def padded(x, count):
    return x.new_zeros(count, *x.shape).add(x).sum(0) * (torch.arange(count).sum() + count)


@pytest.mark.parametrize("fn", [shortened, padded])
def test_method_with_a_size_from_a_scalar(fn):
    compiled = tofuse.compile(fn)
    for count in (3, 5, 1, 4):
        x = torch.randn(6, 12, requires_grad=True)
        found, wanted = (f(x, torch.tensor(count)) for f in (compiled, fn))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*[torch.autograd.grad(r.sum(), x)[0] for r in (found, wanted)])
