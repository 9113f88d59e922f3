"""Buffers that views of PyTorch operators share are not reused while the views are live."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def windows(x, y):
    v = x @ y
    u, w = v.unfold(-1, 3, 1), torch.relu(v)
    return u * (1 + w.sum()), w


def windows_of_kernel_result(x, y):
    v = x.softmax(-1)
    u, w = v.unfold(-1, 3, 1).unfold(0, 2, 1), v * (v @ y)
    return u + w.sum(), w


def strided(x, y):
    v = (x @ y).cumsum(0)
    u, w = v.as_strided((4, 4), (5, 1), 6), v.sin()
    return u.exp() + w.sum(), w


def reinterpreted(x, y):
    v = x @ y
    u, w = v.view(torch.int32), torch.relu(v)
    return u ^ w.sum().int(), w


def complex_pairs(x, y):
    v = x[:, :2] @ y[:2, :2]
    u, w = torch.view_as_complex(v), v.exp()
    return u * w.sum(), w


def returned(x, y):
    return torch.special.i1(x)[-1].as_strided((1, 3), (1, 1)) + 0 * y.sum(), x.sin() * y


def small_windows(x, y):
    v = x @ y
    u = v.unfold(-1, 2, 2)
    return u + 1, v.relu() * 2, u.sum(-1), v.exp()


PROGRAMS = [windows, windows_of_kernel_result, strided, reinterpreted, complex_pairs, returned]


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [*PROGRAMS, small_windows], ids=lambda f: f.__name__)
def test_matches_eager(program, grad, capture):
    x, y = (
        torch.randn(5, 5, requires_grad=grad and program is not reinterpreted) for _ in range(2)
    )
    assert_as_eager(program, x, y, rtol=1e-4, atol=1e-4, options={"capture": capture})


OFFSET_SENSITIVE = {
    "a copy": lambda a: torch.as_strided(a.clone(), (10, 20), (60, 1), 0) * 2,
    "of a part": lambda a: torch.as_strided(a.sin()[10:].clone(), (5, 20), (60, 1), 0) * 2,
    "imaginary": lambda a: torch.as_strided(torch.complex(a, a * 2).imag, (30, 30), (1, 30)) * 1,
    "real": lambda a: torch.as_strided(torch.complex(a, a * 2).real, (9, 9), (18, 1)) + 1,
    "bits": lambda a: a.clone().view(torch.int64) + 1,
    "bits of x * 1": lambda a: (a * 1.0).view(torch.int64) + 1,
    "bits of two flips": lambda a: a.flip(0).flip(0).view(torch.int64) + 1,
    "complex pairs": lambda a: torch.view_as_complex((a * 1.0).view(30, -1, 2)) + 1,
}


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("name", OFFSET_SENSITIVE)
def test_storage_offset_of_copy_is_preserved(name, capture):
    x = torch.randn(901)[1:].view(30, 30)
    assert_as_eager(OFFSET_SENSITIVE[name], x, options={"capture": capture})


COPIES = {
    "part of a copy": lambda a: a.clone()[10:],
    "transposed": lambda a: a.clone().t(),
    "copied into": lambda a: torch.empty_like(a).copy_(a)[3:],
    "flipped twice": lambda a: a.flip(0).flip(0)[3:],
    "joined": lambda a: torch.cat([a[:3], a[3:]])[3:],
    "split": lambda a: a.clone().split(10)[1],
}
COPIES_OF_REALS = {
    "complex pairs": lambda a: torch.view_as_complex(a.clone().view(30, -1, 2)),
    "real": lambda a: torch.complex(a, a * 2).real,
}


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("name", [*COPIES, *COPIES_OF_REALS])
def test_results_do_not_alias_arguments_where_eager_copies(name, capture):
    dtypes = (torch.float32, torch.complex64) if name in COPIES else (torch.float32,)
    for dtype in dtypes:
        torch._dynamo.reset()
        x = torch.randn(30, 30, dtype=dtype)
        original = x.clone()
        result = tofuse.compile((COPIES | COPIES_OF_REALS)[name], capture=capture)(x)
        torch.testing.assert_close(result, (COPIES | COPIES_OF_REALS)[name](x))
        result.zero_()
        assert torch.equal(x, original)


def test_copies_of_one_result_are_separate_tensors():
    def f(a):
        v = a * 2
        return v, v.clone(), torch.complex(v.real, v.real).real

    p, q, r = tofuse.compile(f)(torch.ones(30, 30, dtype=torch.complex64))
    p.zero_()
    assert q.abs().min() == r.min() == 2


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_full_view_of_a_result_is_another_tensor(capture):
    def f(x):
        a = x.argmax(0, keepdim=True)
        return a, a.mT, a

    a, b, same = tofuse.compile(f, capture=capture)(torch.randn(3, 1))
    assert a is same and a is not b and a.data_ptr() == b.data_ptr()
    a.unsqueeze_(0)
    assert b.shape == (1, 1)
