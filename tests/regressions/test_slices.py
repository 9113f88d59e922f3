"""Programs that compute on slices of one tensor, and on views of the slices."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import tofuse

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


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_match_eager(program, dynamic):
    x = torch.randn(12, 8)
    assert_close(tofuse.compile(program, dynamic=dynamic)(x, 4), program(x, 4))


def test_the_last_rows_of_a_shorter_cache_are_all_its_rows():
    def program(cache, new):
        last = torch.cat([cache, new], 1)[:, -8:]
        return last.cos() + 1, last

    caches = [torch.randn(2, n, 3) for n in (5, 6, 7, 8, 12, 1, 0)]
    new = torch.randn(2, 1, 3)
    report = tofuse.explain(program, dynamic=True)(caches[0], new)
    assert not report.library_calls
    compiled = tofuse.compile(program, dynamic=True)
    for cache in caches:
        for actual, expected in zip(compiled(cache, new), program(cache, new), strict=True):
            assert_close(actual, expected)
