"""Views of mutated arguments alias the arguments as in eager."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def slice_after_write(x, y):
    x.mul_(2)
    return x[:, 1:]


def transposed_after_write(x, y):
    x.mul_(2)
    z = x.t()
    y.add_(1)
    return z, y[1:], z.sin()


def views_before_and_after_write(x, y):
    v = x[1:]
    x.add_(1)
    v.mul_(3)
    return v[:, 0], x.view(-1)


def splits_after_copy(x, y):
    x.copy_(y.expand(5, 4).t())
    return *x.split(2), y[::2]


@pytest.mark.parametrize(
    "fn",
    [slice_after_write, transposed_after_write, views_before_and_after_write, splits_after_copy],
    ids=lambda f: f.__name__,
)
def test_views_of_mutated_arguments(fn):
    assert_as_eager(fn, torch.randn(4, 5), torch.randn(4))
    report = tofuse.explain(fn)(torch.randn(4, 5), torch.randn(4))
    assert report.kernels and not report.notes


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_a_write_under_no_grad_leaves_the_gradient_of_an_argument(capture):
    """Only the argument itself is returned, or nothing that autograd records."""

    def scale(x):
        with torch.no_grad():
            return x.mul_(2)

    def fill(x):
        with torch.no_grad():
            x.fill_(3)
        return x

    def count(x):
        with torch.no_grad():
            x[0] = 5
        return x.detach().sum()

    for function in scale, fill, count:
        leaf = torch.randn(4, 3, requires_grad=True)
        eager, ours = leaf.clone(), leaf.clone()
        expected = function(eager)
        result = tofuse.compile(function, capture=capture)(ours)
        torch.testing.assert_close([result, ours], [expected, eager])
        gradients = [torch.autograd.grad(x.sin().sum(), leaf) for x in (ours, eager)]
        torch.testing.assert_close(*gradients)
        assert ours._version >= eager._version
