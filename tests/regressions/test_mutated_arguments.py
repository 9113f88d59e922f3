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


def whole_and_part():
    x = torch.arange(3.0).reshape(1, 3).clone()
    return x, x[:1]


def two_views(whole):
    return whole[:1], whole[:1]


VIEWED = {
    "one argument": whole_and_part,
    "rows": lambda: [torch.arange(12.0).view(4, 3)[:1]] * 2,
    "part of rows": lambda: [torch.arange(12.0).view(2, 6)[:1, :3]] * 2,
    "two views of rows": lambda: two_views(torch.arange(12.0).view(4, 3)),
    "two views of planes": lambda: two_views(torch.arange(24.0).view(4, 2, 3)[:, 0]),
}


@pytest.mark.parametrize("first", VIEWED)
@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_written_views_of_tensors_of_other_shapes(capture, first):
    """AOTAutograd writes through the tensor that arguments view, whose shape is another."""

    def program(x, y):
        x[:, 1:] = x[:, :-1].clone()
        return y * 2

    compiled = tofuse.compile(program, capture=capture)
    for name in (first, *VIEWED):
        ours, eagers = VIEWED[name](), VIEWED[name]()
        got = compiled(*ours), *ours
        torch.testing.assert_close(got, (program(*eagers), *eagers))
