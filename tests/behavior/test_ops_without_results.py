"""Checks of data are ops without a result; they stand beside every kind of work."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.rand(8, 8)
WORK = {
    "elementwise": lambda x: x.sin() + 1,
    "roll": lambda x: torch.roll(x.half(), 1, -1),
    "roll of a result": lambda x: (y := x.half(), torch.roll(y, 1, -1)),
    "concat": lambda x: torch.cat([x * k for k in range(9)]),
    "long concat": lambda x: torch.cat([x.sin(), *[x] * 80]),
    "pad": lambda x: F.pad(x.exp(), (1, 2)),
    "sum": lambda x: x.sum(),
    "column sums": lambda x: (x * x).sum(0),
    "softmax": lambda x: x.softmax(-1),
    "scan": lambda x: x.cumsum(-1),
    "product": lambda x: (x @ x).relu(),
    "product of a decoded weight": lambda x: x[:1] @ (x.to(torch.int8).float() * 0.1),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "chain of products": lambda x: (x @ x.T).softmax(-1) @ x,
    "dropout": lambda x: F.dropout(x, 0.0),
    "views": lambda x: x.T[::2].reshape(-1),
}


@pytest.mark.parametrize("work", WORK)
def test_a_check_stands_beside(work):
    def program(x, index):
        return F.one_hot(index % 4, 4), WORK[work](x)

    index = torch.arange(6)
    found, expected = tofuse.compile(program, strict=True)(X, index), program(X, index)
    torch.testing.assert_close(found, expected)
