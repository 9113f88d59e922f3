"""Arguments of functions: their shapes for about so many elements, and indices."""

import math
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
# A function by name, and the shapes of its arguments for a number of elements.
Functions = dict[str, tuple[Callable[..., Tensor], Callable[[int], Shapes]]]

BOUNDS = torch.linspace(-1, 1, 9)
_INDICES: dict[tuple[Shape, int], Tensor] = {}


def rows(n: int) -> Shapes:
    return ((4, max(1, n // 4)),)


def two(n: int) -> Shapes:
    return rows(n) * 2


def three(n: int) -> Shapes:
    return rows(n) * 3


def tall(n: int) -> Shapes:
    return ((max(2, n // 64), 64),)


def two_tall(n: int) -> Shapes:
    return tall(n) * 2


def three_tall(n: int) -> Shapes:
    return tall(n) * 3


def side(n: int, most: int = 1 << 30) -> int:
    """Return the side of a square of `n` elements."""
    return min(most, max(3, math.isqrt(n)))


def vector(n: int) -> Shapes:
    return ((n,),)


def square(n: int) -> Shapes:
    return ((side(n),) * 2,)


def squares(n: int) -> Shapes:
    return square(n) * 2


def matrix(n: int) -> Shapes:
    """Return a square matrix for a library's cubic algorithm."""
    return ((side(n, 100),) * 2,)


def matrices(n: int) -> Shapes:
    return matrix(n) * 2


def short_vector(n: int) -> Shapes:
    return ((side(n),),)


def short_vectors(n: int) -> Shapes:
    return short_vector(n) * 2


def points(n: int) -> Shapes:
    return ((side(n), 8),) * 2


def batch(n: int) -> Shapes:
    return ((max(1, n // 16), 4, 4),)


def batches(n: int) -> Shapes:
    return batch(n) * 2


def signal(n: int) -> Shapes:
    return ((2, 4, max(8, n // 8)),)


def image(n: int) -> Shapes:
    return ((2, 4, *(max(4, math.isqrt(n // 8)) // 2 * 2,) * 2),)


def volume(n: int) -> Shapes:
    return ((1, 4, *(max(4, round((n / 4) ** (1 / 3))) // 2 * 2,) * 3),)


def indices(shape: Shape, end: int) -> Tensor:
    """Return integers below `end`, always the same: a program finds them as a constant."""
    key = (*shape,), end
    if key not in _INDICES:
        _INDICES[key] = torch.randint(0, end, shape, generator=torch.Generator().manual_seed(0))
    return _INDICES[key]


def places(x: Tensor, dim: int = -1) -> Tensor:
    """Return an index into a dimension for each element."""
    return indices(x.shape, x.shape[dim])


def rows_of(x: Tensor, dim: int = 0) -> Tensor:
    """Return an index into a dimension for each of its rows."""
    return indices((x.shape[dim],), x.shape[dim])


def spd(x: Tensor) -> Tensor:
    """Return a symmetric positive definite matrix."""
    return x @ x.mT + x.shape[-1] * torch.eye(x.shape[-1])


def each(
    owner: ModuleType, names: str, shapes: Callable[[int], Shapes], call: Callable[..., Tensor]
) -> Functions:
    """Return functions of a module; `call` takes the function and its arguments."""
    return {name: (_bind(call, getattr(owner, name)), shapes) for name in names.split()}


def _bind(call: Callable[..., Tensor], function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *inputs: call(function, *inputs)
