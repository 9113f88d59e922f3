"""What PyTorch's own views look at is not written over while they are looked through."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def windows(x, y):
    v = x @ y
    u, w = v.unfold(-1, 3, 1), torch.relu(v)
    return u * (1 + w.sum()), w


def windows_of_a_kernels_result(x, y):
    v = x.softmax(-1)
    u, w = v.unfold(-1, 3, 1).unfold(0, 2, 1), v * (v @ y)
    return u + w.sum(), w


def strided(x, y):
    v = (x @ y).cumsum(0)
    u, w = v.as_strided((4, 4), (5, 1), 6), v.sin()
    return u.exp() + w.sum(), w


def bits(x, y):
    v = x @ y
    u, w = v.view(torch.int32), torch.relu(v)
    return u ^ w.sum().int(), w


def pairs(x, y):
    v = x[:, :2] @ y[:2, :2]
    u, w = torch.view_as_complex(v), v.exp()
    return u * w.sum(), w


def returned(x, y):
    return torch.special.i1(x)[-1].as_strided((1, 3), (1, 1)) + 0 * y.sum(), x.sin() * y


def small_and_side_by_side(x, y):
    v = x @ y
    u = v.unfold(-1, 2, 2)
    return u + 1, v.relu() * 2, u.sum(-1), v.exp()


PROGRAMS = [windows, windows_of_a_kernels_result, strided, bits, pairs, returned]


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [*PROGRAMS, small_and_side_by_side], ids=lambda f: f.__name__)
def test_as_eager(program, grad, capture):
    x, y = (torch.randn(5, 5, requires_grad=grad and program is not bits) for _ in range(2))
    assert_as_eager(program, x, y, rtol=1e-4, atol=1e-4, options={"capture": capture})


COPIED = {
    "a copy": lambda a: torch.as_strided(a.clone(), (10, 20), (60, 1), 0) * 2,
    "of a part": lambda a: torch.as_strided(a.sin()[10:].clone(), (5, 20), (60, 1), 0) * 2,
    "imaginary": lambda a: torch.as_strided(torch.complex(a, a * 2).imag, (30, 30), (1, 30)) * 1,
    "real": lambda a: torch.as_strided(torch.complex(a, a * 2).real, (9, 9), (18, 1)) + 1,
    "bits": lambda a: a.clone().view(torch.int64) + 1,
    "bits of one times": lambda a: (a * 1.0).view(torch.int64) + 1,
    "bits turned twice": lambda a: a.flip(0).flip(0).view(torch.int64) + 1,
    "pairs": lambda a: torch.view_as_complex((a * 1.0).view(30, -1, 2)) + 1,
}


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("name", COPIED)
def test_what_an_operator_sees_of_a_copys_place_stays(name, capture):
    x = torch.randn(901)[1:].view(30, 30)
    assert_as_eager(COPIED[name], x, options={"capture": capture})


OWN = {
    "part of a copy": lambda a: a.clone()[10:],
    "transposed": lambda a: a.clone().t(),
    "copied into": lambda a: torch.empty_like(a).copy_(a)[3:],
    "turned twice": lambda a: a.flip(0).flip(0)[3:],
    "joined": lambda a: torch.cat([a[:3], a[3:]])[3:],
    "split": lambda a: a.clone().split(10)[1],
}
OF_REALS = {
    "pairs": lambda a: torch.view_as_complex(a.clone().view(30, -1, 2)),
    "real": lambda a: torch.complex(a, a * 2).real,
}


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("name", [*OWN, *OF_REALS])
def test_results_are_not_the_callers_memory_where_eager_copies(name, capture):
    dtypes = (torch.float32, torch.complex64) if name in OWN else (torch.float32,)
    for dtype in dtypes:
        torch._dynamo.reset()
        x = torch.randn(30, 30, dtype=dtype)
        kept = x.clone()
        made = tofuse.compile((OWN | OF_REALS)[name], capture=capture)(x)
        torch.testing.assert_close(made, (OWN | OF_REALS)[name](x))
        made.zero_()
        assert torch.equal(x, kept)


def test_copies_of_one_result_are_tensors_of_their_own():
    def f(a):
        v = a * 2
        return v, v.clone(), torch.complex(v.real, v.real).real

    p, q, r = tofuse.compile(f)(torch.ones(30, 30, dtype=torch.complex64))
    p.zero_()
    assert q.abs().min() == r.min() == 2


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_a_view_that_is_all_of_a_result_is_another_tensor(capture):
    def f(x):
        a = x.argmax(0, keepdim=True)
        return a, a.mT, a

    a, b, again = tofuse.compile(f, capture=capture)(torch.randn(3, 1))
    assert a is again and a is not b and a.data_ptr() == b.data_ptr()
    a.unsqueeze_(0)
    assert b.shape == (1, 1)
