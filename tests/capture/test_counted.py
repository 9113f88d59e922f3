"""Tensors that are as long as an argument's number says are made before the program."""

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
def test_a_tensor_that_a_number_counts_the_elements_of(fn):
    compiled = tofuse.compile(fn)
    for longest in (5, 7, 9):
        x = torch.randn(3, 12, requires_grad=True)
        lengths = torch.tensor([2, longest, 4])
        found, wanted = compiled(x, lengths), fn(x, lengths)
        torch.testing.assert_close(found, wanted)
        both = [r if fn is masked else r[1] for r in (found, wanted)]
        torch.testing.assert_close(*[torch.autograd.grad(r.sum(), x)[0] for r in both])
