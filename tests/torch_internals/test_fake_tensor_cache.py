"""Shapes of what calls on pieces make are found once, and those of views are each their own."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo import config
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

import tofuse
from tofuse.torch_internals.fake_tensor_cache import anywhere

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def normed(x, count):
    return torch.stack([F.layer_norm(p, p.shape[1:]).tanh() for p in x.chunk(count)])


def views_of_pieces(x, count):
    pieces = [p.t()[1:].unsqueeze(0) for p in x.split(x.shape[0] // count)]
    return torch.cat([p * p.storage_offset() for p in pieces]), pieces[-1]


def written_pieces(x, count):
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


PROGRAMS = [normed, views_of_pieces, written_pieces, as_strided, products]


def found_anew(compile, count):
    """How many calls are run without memory, for so many pieces."""
    torch._dynamo.reset()
    FakeTensorMode.cache_clear()
    compile(normed)(torch.randn(4 * count, 6), count)
    return FakeTensorMode.cache_misses


def test_what_pieces_are_normed_to_is_found_once():
    three, seven = (found_anew(tofuse.compile, count) for count in (3, 7))
    assert seven == three


def test_other_programs_are_as_they_were():
    three, seven = (
        found_anew(lambda f: torch.compile(f, backend="eager"), count) for count in (3, 7)
    )
    assert seven >= three + 4
    tofuse.compile(normed)(torch.randn(6, 6), 2)
    three, seven = (
        found_anew(lambda f: torch.compile(f, backend="eager"), count) for count in (3, 7)
    )
    assert seven >= three + 4


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_is_what_it_would_be_if_nothing_were_remembered(program, dynamic):
    x = torch.randn(12, 8)
    with config.patch(fake_tensor_cache_crosscheck_enabled=True):
        assert_close(tofuse.compile(program, dynamic=dynamic)(x, 4), program(x, 4))


@pytest.mark.parametrize("grad", [False, True])
def test_a_mode_remembers_only_what_is_new(grad):
    mode = FakeTensorMode()
    anywhere(mode)
    with mode:
        x = torch.empty(10, 4, requires_grad=grad)
        firsts = [p.exp() for p in x.chunk(5)]
        views = [p.t() for p in x.chunk(5)]
    assert [v.storage_offset() for v in firsts] == [0] * 5
    assert [v.storage_offset() for v in views] == [0, 8, 16, 24, 32]
    assert len({v.untyped_storage()._cdata for v in firsts}) == 5
    assert len({v.untyped_storage()._cdata for v in views}) == 1
    assert all(v.requires_grad == grad for v in firsts + views)
