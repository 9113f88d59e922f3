"""Outputs that are separate tensors in eager stay separate."""

from typing import Any

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

PROGRAMS: dict[str, Any] = {
    "stacked": lambda x: (a := x.flip(0), b := x.flip(0), torch.stack([a, b, -x], 1)),
    "rolled": lambda x: (a := x.roll(1, 0), b := x.roll(1, 0), torch.cat([a, b], 0)),
    "softmax": lambda x: (a := x.softmax(0), b := x.softmax(0), torch.stack([a, b]).tanh()),
    "branches": lambda x: (
        pieces := [(p * 2).softmax(-1) for p in x.chunk(2)],
        torch.stack(pieces).exp(),
    ),
    "transposed": lambda x: (a := x.softmax(0), b := x.softmax(0).T, torch.cat([a, b.T], 0) + 1),
}


def storage_ids(tree):
    leaves = [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]
    mine = [t.untyped_storage()._cdata for t in leaves]
    return [mine.index(s) for s in mine]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_outputs_share_storage_as_in_eager(program, grad):
    f = PROGRAMS[program]
    x = torch.randn(4, 8, requires_grad=grad)
    assert storage_ids(tofuse.compile(f)(x)) == storage_ids(f(x))
    assert_as_eager(f, x)


@pytest.mark.parametrize("grad", [False, True])
def test_writing_one_output_keeps_saved_tensors_valid(grad):
    w = torch.randn(4, 8, requires_grad=True)
    a, b, _ = tofuse.compile(PROGRAMS["stacked"])(torch.randn(4, 8, requires_grad=grad))
    loss = (a * w).sum()
    with torch.no_grad():
        b.add_(1)
    loss.backward()
    torch.testing.assert_close(w.grad, a.detach())


def test_views_of_one_output_stay_views():
    def f(x):
        y = x.exp()
        return y, y.T, y[1:]

    x = torch.randn(4, 8)
    assert storage_ids(tofuse.compile(f)(x)) == storage_ids(f(x)) == [0, 0, 0]
    assert len(tofuse.explain(f)(x).kernels) == 1
