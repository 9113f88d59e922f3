"""Dropout and random seeds."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse
from tests.support.eager import assert_as_eager, assert_same_tensor

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def dropped_mask(y):
    """Return which elements of a dropout over ones are 0; the others must be scaled."""
    assert set(y.unique().tolist()) <= {0.0, torch.tensor(1 / 0.7).item()}
    return y == 0


def test_dropout_after_broadcast_drops_single_elements():
    """pytorch 82784"""

    def before_broadcast(x):
        return F.dropout(x, 0.3).expand(64, 100) * 1.0

    def after_broadcast(x):
        return F.dropout(x.expand(64, 100), 0.3) * 1.0

    x = torch.ones(100)
    rows = dropped_mask(tofuse.compile(before_broadcast)(x))
    assert (rows == rows[0]).all()
    grid = dropped_mask(tofuse.compile(after_broadcast)(x))
    assert not (grid == grid[0]).all()
    assert 0.25 < grid.float().mean() < 0.35


def test_mask_does_not_depend_on_fusion():
    """pytorch 82784: the mask is keyed by logical index, not by the loops around the dropout."""

    def alone(x):
        return F.dropout(x, 0.3)

    def transposed(x):
        return F.dropout(x, 0.3).t().contiguous()

    def with_sum(x):
        y = F.dropout(x, 0.3)
        return y, y.sum(0), (y + 1).softmax(-1)

    x, masks = torch.ones(37, 53), []
    for fn in (alone, transposed, with_sum):
        torch.manual_seed(5)
        result = tofuse.compile(fn)(x)
        result = result[0] if isinstance(result, tuple) else result
        masks.append(dropped_mask(result.t() if fn is transposed else result))
    assert torch.equal(masks[0], masks[1]) and torch.equal(masks[0], masks[2])


CHANNELS = (
    (nn.Dropout1d, (16, 32, 9)),
    (nn.Dropout2d, (16, 32, 5, 5)),
    (nn.Dropout3d, (8, 32, 3, 3, 3)),
)


@pytest.mark.parametrize(("module", "shape"), CHANNELS)
def test_channel_dropout_drops_whole_channels(module, shape):
    """pytorch 142853"""
    x = torch.ones(shape, requires_grad=True)
    y = tofuse.compile(module(0.5))(x)
    flat = y.flatten(2)
    assert torch.equal(flat.amin(-1), flat.amax(-1))
    assert 0.3 < (flat[..., 0] == 0).float().mean() < 0.7
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())


def test_seed_reproduces_dropout_across_thread_counts():
    """The field's common complaint. Consecutive calls must differ."""
    x = torch.ones(64, 1000)
    f = tofuse.compile(lambda x: F.dropout(x + 1, 0.3))
    before, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            torch.manual_seed(7)
            runs.append((f(x), f(x)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(runs[0][0], runs[1][0]) and torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(*runs[0])


@pytest.mark.parametrize(("p", "train"), [(0.0, True), (1.0, True), (0.3, False)])
@pytest.mark.parametrize("grad", [False, True])
def test_deterministic_dropout_is_exact(p, train, grad):
    """p = 0, p = 1, and eval mode."""
    x = torch.tensor([1.0, -2.0, float("inf"), float("nan"), -0.0], requires_grad=grad)
    assert_as_eager(lambda x: F.dropout(x * 1.5, p, train), x, rtol=0, atol=0)


def test_inactive_dropout_returns_its_input():
    """As in eager, a write into the result is a write into the argument."""

    def write(x):
        y = F.dropout(x, 0.5, False)
        y.add_(1)
        return y

    assert_as_eager(write, torch.randn(5), rtol=0, atol=0)
    assert_as_eager(lambda x: F.dropout(x, 0.0), torch.randn(5), rtol=0, atol=0)
    assert_as_eager(lambda x: F.alpha_dropout(x, 0.5), torch.randn(5), rtol=0, atol=0)


def test_backward_regenerates_the_mask():
    """Only a seed is saved, and the masks of forward and backward agree."""
    x = torch.ones(50, 70, requires_grad=True)
    y = tofuse.compile(lambda x: F.dropout(x, 0.25).sin())(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    kept = y != 0
    assert torch.equal(gradient != 0, kept)
    scale = 1 / 0.75
    expected = torch.where(kept, scale * torch.cos(torch.tensor(scale)), torch.tensor(0.0))
    torch.testing.assert_close(gradient, expected)
    assert_same_tensor(y.detach(), torch.where(kept, y.detach()[kept][0], torch.tensor(0.0)))
