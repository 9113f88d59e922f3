"""Python floats that vary from call to call, as arguments that must stay floats."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tofuse
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting

FUNCTIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "clamp": lambda x, d: (x * d * x).clamp(max=1 - d) * x,
    "pow": lambda x, d: (x.abs() + 1) ** d * d,
    "lerp": lambda x, d: x.sin().lerp(x, d) * d,
    "softplus": lambda x, d: F.softplus(x * d, beta=d),
    "eps": lambda x, d: F.layer_norm(x, (4,), eps=d) * d,
    "alpha": lambda x, d: torch.add(x.exp(), x, alpha=1 - d) * d,
    "less": lambda x, d: torch.sub(x.exp(), x, alpha=d) * 2,
    "products": lambda x, d: torch.addcmul(x.exp(), x, x.sin(), value=d) * 2,
    "quotients": lambda x, d: torch.addcdiv(x.exp(), x, x.exp() + 1, value=d) * 2,
    "of wider": lambda x, d: torch.add(x.half(), x, alpha=d) * 2,
    "of narrower": lambda x, d: torch.add(x, x.half(), alpha=d) * 2,
    "of integers": lambda x, d: torch.add(torch.arange(4), x.exp(), alpha=d) * 2,
    "of a number": lambda x, d: torch.add(x.exp(), 2, alpha=d) * 2,
    "slope": lambda x, d: F.leaky_relu(x, d) * d,
    "beta": lambda x, d: F.smooth_l1_loss(x, x.detach() * d, beta=d),
    "factor": lambda x, d: x * d,
}


@pytest.mark.broad(4)
@pytest.mark.parametrize("options", [{}, {"dynamic": True}], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_float_is_used(name: str, options: dict[str, bool]):
    f = FUNCTIONS[name]
    compiled = tofuse.compile(f, strict=True, **options)
    for d in (0.9, 0.99, 0.7, 0.5, 0.3, 0.5):
        x = torch.randn(3, 4, requires_grad=True)
        actual, expected = compiled(x, d), f(x, d)
        torch.testing.assert_close(actual, expected)
        (actual_grad,), (expected_grad,) = (
            torch.autograd.grad(t.sum(), x) for t in (actual, expected)
        )
        torch.testing.assert_close(actual_grad, expected_grad)


@pytest.mark.parametrize("name", ["alpha", "less", "products", "quotients"])
def test_symbolic_factors_are_in_kernels(name: str):
    compiled, report = compile_reporting(FUNCTIONS[name], make_config({}))
    for d in (0.9, 0.99, 0.7):  # static in the first call
        compiled(torch.randn(3, 4), d)
    graph = report.graphs[-1]
    assert (len(report.graphs), len(graph.kernels), len(graph.library_calls)) == (2, 1, 0)


def test_a_returned_symbolic_float():
    def f(x: Tensor, d: float) -> tuple[Tensor, float]:
        return x * d, 1 - d

    compiled = tofuse.compile(f, strict=True)
    for d in (0.9, 0.99, 0.999, 0.5):
        actual, left = compiled(torch.ones(2), d)
        assert left == 1 - d
        torch.testing.assert_close(actual, torch.full((2,), d))


def test_a_returned_symbolic_size_with_gradients():
    def f(x: Tensor) -> tuple[Tensor, int]:
        return torch.tanh(x).sum(), x.shape[0] * 2

    compiled = tofuse.compile(f, strict=True)
    for rows in (16, 9, 11, 9):
        x = torch.randn(rows, 4, requires_grad=True)
        (actual, size), (expected, _) = compiled(x), f(x)
        assert size == 2 * rows
        torch.testing.assert_close(actual, expected)
        (actual_grad,), (expected_grad,) = (torch.autograd.grad(t, x) for t in (actual, expected))
        torch.testing.assert_close(actual_grad, expected_grad)
