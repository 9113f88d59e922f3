"""Boxed functions, which take all arguments in one list that they may empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Union

import torch

BoxedFunction = Callable[[list[object]], list[torch.Tensor]]
Results = Union[torch.Tensor, Sequence[torch.Tensor]]  # noqa: UP007  (evaluated at run time)


class MarkedBoxed(Protocol):
    """A boxed function that AOTAutograd recognizes as boxed."""

    _boxed_call: bool

    def __call__(self, args: list[object], /) -> object: ...


def mark_boxed(function: Callable[[list[object]], object]) -> MarkedBoxed:
    """Return `function` with the mark by which AOTAutograd passes arguments in one list."""

    def call(args: list[object], /) -> object:
        return function(args)

    call._boxed_call = True  # type: ignore[attr-defined]  # functorch's convention
    return call  # type: ignore[return-value]  # now it has the attribute
