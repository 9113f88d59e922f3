"""A backward is compiled for the strides of its first gradients, and again for others."""

import itertools

import pytest
import torch

import tofuse
from tofuse.driver import function_record

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "empty_cache_on_disk")

LAYOUTS = {
    "one number": torch.randn(()).expand(6, 5, 4),
    "row-major": torch.randn(6, 5, 4),
    "transposed": torch.randn(5, 6, 4).transpose(0, 1),
    "reversed": torch.randn(4, 5, 6).permute(2, 1, 0),
    "equal rows": torch.randn(5, 4).expand(6, 5, 4),
    "equal columns": torch.randn(6, 5, 1).expand(6, 5, 4),
    "every second": torch.randn(12, 5, 8)[::2, :, ::2],
    "overlapping windows": torch.randn(13).as_strided((6, 5, 4), (1, 1, 1)),
    "last first": torch.randn(4, 6, 5).permute(1, 2, 0),
}


def program(x):
    return torch.sin(x) * x.mean(-1, keepdim=True)


@pytest.fixture
def variants(monkeypatch):
    """The phases of the variants that are compiled."""
    found, compile_captured = [], function_record.compile_captured

    def recorded(captured, phase, *rest):
        found.append(phase)
        return compile_captured(captured, phase, *rest)

    monkeypatch.setattr(function_record, "compile_captured", recorded)
    return found


@pytest.mark.parametrize("first", LAYOUTS)
def test_the_first_gradients_need_no_variant(variants, first):
    x = torch.randn(6, 5, 4, requires_grad=True)
    compiled = tofuse.compile(program)
    for _ in range(3):
        (grad,) = torch.autograd.grad(compiled(x), x, LAYOUTS[first])
        (expected,) = torch.autograd.grad(program(x), x, LAYOUTS[first])
        torch.testing.assert_close(grad, expected)
    assert variants == []


@pytest.mark.parametrize("first", LAYOUTS)
def test_gradients_of_any_strides_are_right(first):
    """Also after the last variant: where the first gradients repeat elements, others must not."""
    x = torch.randn(6, 5, 4, requires_grad=True)
    for compiled in (tofuse.compile(program), tofuse.compile(program)):
        torch._dynamo.reset()
        others = [name for name in LAYOUTS if name != first]
        for name in itertools.chain([first], others, [first], reversed(others)):
            (grad,) = torch.autograd.grad(compiled(x), x, LAYOUTS[name])
            (expected,) = torch.autograd.grad(program(x), x, LAYOUTS[name])
            torch.testing.assert_close(grad, expected)
