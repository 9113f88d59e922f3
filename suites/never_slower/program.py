"""A program: how it is made, and the shapes of its arguments."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

Shape = tuple[int, ...]
Callee = Callable[..., Tensor]


@dataclass(frozen=True)
class Program:
    """`make()` returns what is called with tensors of normal numbers of these shapes.

    The arguments have the dtype of the parameters, or are float32.
    """

    make: Callable[[], Callee]
    shapes: tuple[Shape, ...]


def function(call: Callee, *shapes: Shape) -> Program:
    """Return a program that calls a function."""
    return Program(lambda: call, shapes)


def module(make: Callable[[], nn.Module], *shapes: Shape) -> Program:
    """Return a program that calls a module."""
    return Program(make, shapes)
