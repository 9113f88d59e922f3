"""Pooling of volumes, and local response normalization, which is computed from it."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
OPTIONS: list[Any] = list(
    itertools.product(
        (2, 3, (1, 2, 3)), (None, 1, (2, 1, 3)), (0, 1), (1, (2, 1, 1)), (False, True)
    )
)
LAYOUTS = {
    "rows": lambda: torch.randn(2, 3, 5, 7, 6),
    "no batch": lambda: torch.randn(3, 6, 4, 9),
    "channels last": lambda: torch.randn(2, 4, 6, 5, 4).to(memory_format=torch.channels_last_3d),
    "transposed": lambda: torch.randn(1, 3, 6, 5, 8).transpose(2, 4),
    "nothing": lambda: torch.randn(0, 3, 4, 4, 4),
}


def is_valid(f, x):
    try:
        f(x)
    except RuntimeError:
        return False  # padding of more than half a window, or nothing left
    return True


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pooling_of_volumes(layout, some):
    x = LAYOUTS[layout]().round(decimals=1)  # with ties
    for size, step, padding, dilation, ceil in some(OPTIONS, 14 if layout == "rows" else 36):
        for f in (
            lambda x: F.max_pool3d(x.sin(), size, step, padding, dilation, ceil, True),  # noqa: B023
            lambda x: F.max_pool3d(x * 2, size, step, padding, dilation, ceil) + 1,  # noqa: B023
            lambda x: F.avg_pool3d(x, size, step, padding, ceil, False, 5 if padding else None),  # noqa: B023
        ):
            if is_valid(f, x):
                inputs = x.detach().requires_grad_()
                assert_as_eager(f, inputs, options={"capture": "trace"}, calls=1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    x = torch.randn(1, 2, 6, 7, 8).to(dtype)
    programs = [
        lambda x: F.max_pool3d(x, 3, 2, 1),
        lambda x: F.adaptive_avg_pool3d(x, (3, 7, 2)),
        lambda x: F.avg_pool3d(x, 3, 2, 1),  # eager does not support bfloat16
    ]
    for f in programs[: 2 if dtype is torch.bfloat16 else 3]:
        exact = f(x.double()).to(dtype)  # eager accumulates in bfloat16
        torch.testing.assert_close(tofuse.compile(f, capture="trace")(x), exact)


@pytest.mark.parametrize("size", [(3, 5, 2), 1, (6, 1, 4), (4, 3, 3)], ids=str)
def test_adaptive_average_pooling(size):
    x = torch.randn(2, 3, 6, 5, 4, requires_grad=True)
    assert_as_eager(lambda x: F.adaptive_avg_pool3d(x.relu(), size), x)


@pytest.mark.parametrize("shape", [(2, 7, 5), (2, 9, 5, 6), (1, 4, 3, 5, 2)], ids=str)
def test_local_response_norm(shape):
    x = torch.randn(shape, requires_grad=True)
    assert_as_eager(lambda x: F.local_response_norm(x, 5, 1e-2, 0.75, 2.0), x)
    assert_as_eager(lambda x: F.local_response_norm(x.relu(), 2), x)


def test_pooling_fuses_with_its_neighbours():
    x = torch.randn(2, 16, 12, 12, requires_grad=True)
    report = tofuse.explain(lambda x: F.local_response_norm(x.relu(), 5) * 2)(x)
    assert not report.library_calls
    volume = torch.randn(1, 4, 8, 8, 8, requires_grad=True)
    report = tofuse.explain(lambda x: F.max_pool3d(x * 2, 2) + F.avg_pool3d(x, 2))(volume)
    assert not report.library_calls
