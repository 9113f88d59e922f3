"""Programs that change the storage of tensors: resize_, as_strided, set_ and data assignment."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
X = torch.arange(48.0).reshape(6, 8) / 7 - 3


def resize(x):
    y = x * 2
    y.resize_(3, 4)
    return y


def resize_input(x):
    x.resize_(3, 4)
    return x + 1


def as_strided_input(x):
    return x.as_strided((3, 3), (2, 1), 1) + 1


def as_strided_intermediate(x):
    return (x * 2).as_strided((3, 3), (2, 1), 1) + 1


def as_strided_write(x):
    x.as_strided((3,), (1,)).add_(1)
    return x * 2


RESIZED = (resize, resize_input, as_strided_input, as_strided_intermediate, as_strided_write)


@pytest.mark.parametrize("fn", RESIZED, ids=lambda f: f.__name__)
def test_resize_and_as_strided(fn):
    """pytorch 191449, 197431"""
    assert_as_eager(fn, X.clone())


def test_set():
    """pytorch 185888"""

    def f(x, y):
        x.set_(y)
        return x * 2

    assert_as_eager(f, X.clone(), torch.randn(3))


def test_data_assignment():
    """pytorch 185888: AOTAutograd cannot trace it, eager runs it."""

    def f(x, y):
        x.data = y
        return x * 2

    x, y = torch.randn(3), torch.randn(3)
    result = tofuse.compile(f)(x, y)
    assert torch.equal(result, y * 2) and x.data_ptr() == y.data_ptr()
