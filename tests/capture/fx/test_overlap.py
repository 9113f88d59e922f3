"""Two views share elements exactly if their indices show it."""

import random

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tofuse.capture.fx.overlap import may_share_elements

VIEWS, ELEMENTS = 1000, 200


def random_view(rng):
    """Return sizes, strides and offset of a view of `ELEMENTS` elements."""
    rank = rng.randint(0, 3)
    strides = [rng.choice([0, 1, 2, 3, 5, 6, 10, 12, 20, 24]) for _ in range(rank)]
    return [rng.randint(1, 3) for _ in range(rank)], strides, rng.randint(0, 40)


def shares_elements(base, views):
    """Return the answer for two views of fake memory, each (sizes, strides, offset)."""
    fake = FakeTensorMode().from_tensor(base)
    a, b = (fake.as_strided(*view) for view in views)
    assert isinstance(a, FakeTensor) and isinstance(b, FakeTensor)
    return may_share_elements(a, b)


def test_shared_elements_of_random_views():
    rng, base = random.Random(0), torch.arange(ELEMENTS)
    shared = 0
    for _ in range(VIEWS):
        views = random_view(rng), random_view(rng)
        a, b = (set(base.as_strided(*v).reshape(-1).tolist()) for v in views)
        assert shares_elements(base, views) == (not a.isdisjoint(b)), views
        shared += not a.isdisjoint(b)
    assert 100 < shared < VIEWS - 100


def test_shared_elements_of_many_dimensions():
    sizes, strides = [3] * 15, [2 * 3**k for k in range(15)]
    base = torch.empty(2 * 3**16, dtype=torch.int8)
    assert not shares_elements(base, ((sizes, strides, 0), (sizes, strides, 1)))
    assert shares_elements(base, ((sizes, strides, 0), (sizes, strides, 2)))
