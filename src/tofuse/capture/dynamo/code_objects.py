"""Python frames of their own for what Dynamo captures."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
NUMBERS = itertools.count()


def own_frame(function: Callable[P, R]) -> Callable[P, R]:
    """The function inside a frame that no other has.

    Dynamo skips the frames of torch's own modules, such as a Sequential's. What it compiled it
    keeps with the code of a frame, and by the code's name and line which sizes varied from call to
    call: two modules, or methods of two objects, would make symbols of each other's sizes.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=f"call_{next(NUMBERS)}")
    functools.update_wrapper(call, function, ("__name__", "__doc__"), ())
    return call
