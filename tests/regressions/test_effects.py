"""Calls with side effects, ordered by effect tokens, run between kernels."""

import pytest
import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
LOG: list[str] = []


@torch.library.custom_op("tofuse_tests::log_word", mutates_args=())
def log_word(x: torch.Tensor, word: str) -> tuple[torch.Tensor, torch.Tensor]:
    LOG.append(word)
    return x + 1, x * 2


@log_word.register_fake
def _(x, word):
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("tofuse_tests::log_end", mutates_args=())
def log_end(x: torch.Tensor) -> None:
    LOG.append("end")


log_end.register_fake(lambda x: None)
_register_effectful_op(log_word._opoverload, _EffectType.ORDERED)
_register_effectful_op(log_end._opoverload, _EffectType.ORDERED)


def solve(a, b):
    return (torch.linalg.solve(a * 2, b) + 1).relu()


def cholesky(a, b):
    return torch.linalg.cholesky(a.abs() + torch.eye(3) * 9).sin() @ b


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("fn", [solve, cholesky], ids=lambda f: f.__name__)
def test_other_ops_around_matrix_checks_are_fused(fn, capture):
    a, b = torch.randn(3, 3) + 3 * torch.eye(3), torch.randn(3, 2)
    assert_as_eager(fn, (a + a.T).requires_grad_(), b.requires_grad_())
    report = tofuse.explain(fn, capture=capture)(a, b)
    assert report.kernels and not report.notes


def test_matrix_checks_raise():
    compiled = tofuse.compile(lambda a: torch.linalg.inv(a * 0) + 1)
    with pytest.raises(RuntimeError, match="singular"):
        compiled(torch.randn(3, 3))


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_order_of_effects(capture):
    def fn(x):
        y, z = log_word(x * 2, "first")
        log_end(y + 1)
        _, z = log_word(z.sin(), "second")
        log_word(y, "unread")
        return (y * z).relu()

    x = torch.randn(5)
    compiled = tofuse.compile(fn, capture=capture)
    compiled(x)
    LOG.clear()
    torch.testing.assert_close(compiled(x), fn(x))
    assert LOG == ["first", "end", "second", "unread"] * 2
