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
