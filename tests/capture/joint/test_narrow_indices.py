"""Indices are saved for the backward in the narrowest dtype."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def pool(x):
    return F.max_pool2d(x.relu(), 3, 2, 1) * 2


def pool_with_indices(x):
    return F.max_pool2d(x, 2, return_indices=True)


def row_maximum(x):
    return x.max(-1).values.sin()


def saved_dtypes(fn, x):
    report = tofuse.explain(fn)(x)
    forward = next(g for g in report.graphs if g.phase == "forward")
    made = dict(line.split()[0::3] for line in forward.plan.splitlines() if " = allocate " in line)
    results = forward.plan.splitlines()[-2].removeprefix("  return ").split(", ")
    return {made[r].partition("[")[0] for r in results if r in made}


@pytest.mark.parametrize(
    ("fn", "shape", "index_dtype"),
    [
        (pool, (2, 3, 8, 16), "i8"),
        (pool, (1, 2, 9, 16), "i16"),
        (pool, (1, 1, 181, 182), "i32"),
        (pool_with_indices, (2, 3, 8, 8), "i64"),
        (row_maximum, (4, 128), "i8"),
        (row_maximum, (4, 129), "i16"),
    ],
)
def test_indices_have_the_narrowest_dtype(fn, shape, index_dtype):
    x = torch.randn(shape, requires_grad=True)
    assert {t for t in saved_dtypes(fn, x) if t.startswith("i")} == {index_dtype}
    torch._dynamo.reset()
    assert_as_eager(fn, x)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (0, 2, 5, 5), (3, 7, 11), (2, 4, 17, 13)])
def test_indices_at_borders_and_of_nans(shape):
    x = torch.randn(shape)
    x.flatten()[::5] = float("nan")
    x.requires_grad_()
    assert_as_eager(pool, x)
