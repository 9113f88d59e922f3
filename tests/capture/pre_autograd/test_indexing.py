"""Indexing by tensors: gathers where a copy and a view are the same, else PyTorch's views."""

import pytest
import torch
from torch._dynamo.exc import TorchRuntimeError

import tofuse
from tests.support.eager import assert_as_eager, copies

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

CACHE, NEW = torch.randn(2, 9, 3), torch.randn(2, 3)


def put(cache, pos, new):
    cache[:, pos] = new
    return (cache * 2).cumsum(1)


def put_one(cache, pos, new):
    cache[:, -pos] = new[0]
    return cache + 1


def look_up(cache, pos, new):
    return cache[:, pos].sin() * 2, torch.linspace(0, 1, 20)[pos] * new


def look_up_in_a_temporary(cache, pos, new):
    return (cache.exp()[:, pos - 2] + new).sin(), cache


@pytest.mark.parametrize("fn", [put, put_one, look_up, look_up_in_a_temporary])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_scalar_tensor_indices_are_compiled(fn, dtype):
    compiled = tofuse.compile(fn)
    for k in (0, 3, 8):
        mine, theirs = (copies((CACHE, torch.tensor(k, dtype=dtype), NEW)) for _ in range(2))
        torch.testing.assert_close(compiled(*mine), fn(*theirs))
        torch.testing.assert_close(mine, theirs)
    report = tofuse.explain(fn)(*copies((CACHE, torch.tensor(1, dtype=dtype), NEW)))
    assert report.kernels and not any("whole program" in n for g in report.graphs for n in g.notes)


def test_gradients_of_scalar_tensor_indices():
    assert_as_eager(
        look_up, CACHE.clone().requires_grad_(), torch.tensor(4), NEW.clone().requires_grad_()
    )


def test_index_out_of_range_raises():
    # torch 2.11 reads the number itself and wraps the error
    with pytest.raises((IndexError, TorchRuntimeError), match=r"out of bounds|fake tensor"):
        tofuse.compile(lambda x, k: x[k].sin())(CACHE, torch.tensor(7))


def views(cache, pos, new):
    return cache[:, pos], cache[pos // 9]


def write_through_a_view(cache, pos, new):
    row = cache[:, pos]
    row.add_(new)
    return cache * 2


def write_another_type(cache, pos, new):
    cache[:, pos] = new.double()
    cache[pos // 9] = 3.0
    return cache + 1


@pytest.mark.filterwarnings("ignore:tofuse runs a whole program")
@pytest.mark.parametrize("fn", [views, write_through_a_view, write_another_type])
def test_views_stay_views(fn):
    assert_as_eager(fn, CACHE.clone(), torch.tensor(3), NEW.clone())


def several(x, i, j):
    return x[i[:, None], j].sin() * 2, x[:, j, j] + 1, (x * 2)[i, j[:1]]


@pytest.mark.parametrize("dynamic", [None, True])
def test_several_index_tensors_are_one_gather(dynamic):
    x, i, j = torch.randn(5, 4, 4), torch.tensor([0, -5, 4]), torch.tensor([-4, 3, 1, -1])
    assert_as_eager(several, x, i, j, options={"dynamic": dynamic})
    assert not tofuse.explain(several)(x, i, j).library_calls
    compiled = tofuse.compile(several)
    for wrong in ((5, 0), (-6, 0), (0, 4), (0, -5), (5, -5)):
        bad = [k.clone() for k in (i, j)]
        bad[0][1], bad[1][2] = wrong
        with pytest.raises(IndexError):
            compiled(x, *bad)


def test_several_index_tensors_into_a_transposed_tensor():
    x, i = torch.randn(4, 3, 5).transpose(0, 1), torch.tensor([0, 2])
    assert_as_eager(lambda x, i: x[i, i].sin(), x, i)
