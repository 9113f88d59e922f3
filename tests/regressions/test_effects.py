"""Calls with effects, which torch keeps in order by tokens, are calls among kernels."""

import pytest
import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
HEARD: list[str] = []


@torch.library.custom_op("tofuse_tests::told", mutates_args=())
def told(x: torch.Tensor, word: str) -> tuple[torch.Tensor, torch.Tensor]:
    HEARD.append(word)
    return x + 1, x * 2


@told.register_fake
def _(x, word):
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("tofuse_tests::ended", mutates_args=())
def ended(x: torch.Tensor) -> None:
    HEARD.append("end")


ended.register_fake(lambda x: None)
_register_effectful_op(told._opoverload, _EffectType.ORDERED)
_register_effectful_op(ended._opoverload, _EffectType.ORDERED)


def solved(a, b):
    return (torch.linalg.solve(a * 2, b) + 1).relu()


def factored(a, b):
    return torch.linalg.cholesky(a.abs() + torch.eye(3) * 9).sin() @ b


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("fn", [solved, factored], ids=lambda f: f.__name__)
def test_checks_of_matrices_leave_the_rest_to_kernels(fn, capture):
    a, b = torch.randn(3, 3) + 3 * torch.eye(3), torch.randn(3, 2)
    assert_as_eager(fn, (a + a.T).requires_grad_(), b.requires_grad_())
    report = tofuse.explain(fn, capture=capture)(a, b)
    assert report.kernels and not report.notes


def test_checks_are_made():
    compiled = tofuse.compile(lambda a: torch.linalg.inv(a * 0) + 1)
    with pytest.raises(RuntimeError, match="singular"):
        compiled(torch.randn(3, 3))


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_order_of_effects(capture):
    def fn(x):
        y, z = told(x * 2, "first")
        ended(y + 1)
        _, z = told(z.sin(), "second")
        told(y, "unread")
        return (y * z).relu()

    x = torch.randn(5)
    compiled = tofuse.compile(fn, capture=capture)
    compiled(x)
    HEARD.clear()
    torch.testing.assert_close(compiled(x), fn(x))
    assert HEARD == ["first", "end", "second", "unread"] * 2
