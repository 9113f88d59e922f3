"""PyTorch programs of any length, whose compilation takes linear time."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def ladder(a: Tensor, b: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Use every value twice: the expression tree has 2^depth leaves."""
    for _ in range(depth):
        a, b = a + b, a * b
    return a, b


def chain(x: Tensor, length: int) -> Tensor:
    """Apply `length` elementwise ops, each to the previous result."""
    for _ in range(length // 4):
        x = ((x + 1) * 0.5).sin() - 0.1
    return x


def scan(a: Tensor, b: Tensor) -> Tensor:
    """Return the scan b[t] += a[t] * b[t - 1] of all rows, by recursive doubling."""
    step = 1
    while step < b.shape[1]:
        b = torch.cat([b[:, :step], b[:, step:] + a[:, step:] * b[:, :-step]], 1)
        a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], 1)
        step *= 2
    return b


def layers(count: int) -> Callable[[Tensor], Tensor]:
    """Return a network of equal layers."""
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(count) for m in (nn.Linear(32, 32), nn.ReLU())))


def norm_of_concat(*operands: Tensor) -> Tensor:
    """Normalize the rows of a concat."""
    rows = torch.cat(operands, -1)
    return F.layer_norm(rows, rows.shape[-1:])


Program = tuple[Callable[..., object], tuple[Tensor, ...]]  # a function and its arguments


def long_ladder(depth: int) -> Program:
    arguments = torch.rand(100) * 0.1, torch.rand(100) * 0.1
    return (lambda a, b: ladder(a, b, depth)), arguments


def long_ladder_with_gradients(depth: int) -> Program:
    program, arguments = long_ladder(depth)
    return program, tuple(t.requires_grad_() for t in arguments)


def long_chain(length: int) -> Program:
    return (lambda x: chain(x, length)), (torch.randn(1000),)


def long_scan(length: int) -> Program:
    return scan, tuple(torch.rand(2, length, 8, requires_grad=True) for _ in range(2))


def many_layers(count: int) -> Program:
    return layers(count), (torch.randn(16, 32, requires_grad=True),)


def norm_of_many(count: int) -> Program:
    return norm_of_concat, tuple(torch.randn(512, 1024 // count) for _ in range(count))


PROGRAMS: tuple[tuple[Callable[[int], Program], int], ...] = (  # and a size
    (long_ladder, 30),
    (long_ladder_with_gradients, 30),
    (long_chain, 200),
    (long_scan, 16),
    (many_layers, 15),
    (norm_of_many, 8),
)
