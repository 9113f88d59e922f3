"""A code object of its own for each function that Dynamo compiles."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
CODE_NUMBERS = itertools.count()


def with_unique_code(function: Callable[P, R]) -> Callable[P, R]:
    """Return a wrapper of `function` with a code object that no other function has.

    Dynamo skips frames of torch's own modules, such as that of `Sequential`. It stores compiled
    programs with the code object of a frame, and remembers by the code's name and line which sizes
    varied. Two modules, or methods of two objects, that share a code object would make each other's
    sizes symbolic.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    name = f"{_name(function)}_{next(CODE_NUMBERS)}"
    call.__code__ = call.__code__.replace(co_name=name)
    functools.update_wrapper(call, function, ("__name__", "__doc__"), ())
    return call


def _name(function: Callable[..., object]) -> str:
    """Return the name of a function, or of the class of the module or object that it belongs to."""
    owner = getattr(function, "__self__", None)
    name = type(owner).__name__ if owner is not None else getattr(function, "__name__", "call")
    return re.sub(r"\W", "_", str(name))
