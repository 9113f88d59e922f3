"""The fake tensor cache: one entry for calls on all slices, and correct metadata of views."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo import config
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

import tofuse
from tofuse.torch_internals.fake_tensor_cache import ignore_storage_offsets

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def normalized_chunks(x, count):
    return torch.stack([F.layer_norm(p, p.shape[1:]).tanh() for p in x.chunk(count)])


def views_of_slices(x, count):
    views = [p.t()[1:].unsqueeze(0) for p in x.split(x.shape[0] // count)]
    return torch.cat([p * p.storage_offset() for p in views]), views[-1]


def written_slices(x, count):
    x = x.clone()
    for piece in x.chunk(count):
        piece.mul_(2).clamp_(max=1)
    return x.sum(0)


def as_strided(x, count):
    rows = [
        p.exp().as_strided((2, 2), (1, 2)) - p.as_strided((2, 2), (1, 2), 3) for p in x.chunk(count)
    ]
    return torch.stack(rows)


def products(x, count):
    return sum(p @ p.t() @ p for p in x.chunk(count, -1)), torch.var_mean(x[1:], 0)


PROGRAMS = [normalized_chunks, views_of_slices, written_slices, as_strided, products]


def cache_misses(compile, count):
    """Return how many calls run on fake tensors for `count` slices."""
    torch._dynamo.reset()
    FakeTensorMode.cache_clear()
    compile(normalized_chunks)(torch.randn(4 * count, 6), count)
    return FakeTensorMode.cache_misses


def test_misses_do_not_grow_with_the_number_of_slices():
    three, seven = (cache_misses(tofuse.compile, count) for count in (3, 7))
    assert seven == three


def test_other_backends_are_unchanged():
    three, seven = (
        cache_misses(lambda f: torch.compile(f, backend="eager"), count) for count in (3, 7)
    )
    assert seven >= three + 4
    tofuse.compile(normalized_chunks)(torch.randn(6, 6), 2)
    three, seven = (
        cache_misses(lambda f: torch.compile(f, backend="eager"), count) for count in (3, 7)
    )
    assert seven >= three + 4


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_cached_metadata_matches_uncached(program, dynamic):
    x = torch.randn(12, 8)
    with config.patch(fake_tensor_cache_crosscheck_enabled=True):
        assert_close(tofuse.compile(program, dynamic=dynamic)(x, 4), program(x, 4))


@pytest.mark.parametrize("grad", [False, True])
def test_results_have_their_own_metadata(grad):
    mode = FakeTensorMode()
    ignore_storage_offsets(mode)
    with mode:
        x = torch.empty(10, 4, requires_grad=grad)
        new = [p.exp() for p in x.chunk(5)]
        views = [p.t() for p in x.chunk(5)]
    assert [v.storage_offset() for v in new] == [0] * 5
    assert [v.storage_offset() for v in views] == [0, 8, 16, 24, 32]
    assert len({v.untyped_storage()._cdata for v in new}) == 5
    assert len({v.untyped_storage()._cdata for v in views}) == 1
    assert all(v.requires_grad == grad for v in new + views)
