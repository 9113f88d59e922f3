"""What runs a call that Dynamo cannot trace: it is traced in another way, or runs in eager."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import torch

from tofuse.capture.dynamo.graph_breaks import first_explanation
from tofuse.capture.fx.location import is_library_file
from tofuse.torch_internals.dynamo import (
    TRACE_ERRORS,
    InternalTorchDynamoError,
    is_trace_error,
    shows_internal_frames,
)

R = TypeVar("R")
OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)


def other_ways(
    error: Exception,
    static: Callable[..., R],
    unfiltered: Callable[..., R],
    eager: Callable[..., R] | None,
) -> list[Callable[..., R]]:
    """Return functions that may run a call that Dynamo could not trace, in order.

    There are none for other errors, if a part of the call has run, or if memory was missing.

    `static` traces without symbolic sizes: DTensor raises TypeError for symbolic strides, which it
    cannot hash. `unfiltered` traces without a filter of guards, for which Dynamo makes all guards
    twice; that fails for guards on a new object, such as the tensor `x.T`. `eager` receives the
    reason first; a program that is wrong raises its own error there.
    """
    first = _first_error(error)
    may_run = is_trace_error(error) and not isinstance(first, OUT_OF_MEMORY)
    if not may_run or _last_user_frame(error) is not None:
        return []
    ways: list[Callable[..., R]] = []
    if isinstance(error, InternalTorchDynamoError):
        ways.append(unfiltered)
    elif isinstance(first, TypeError):
        ways.append(static)
    if eager is not None:
        ways.append(functools.partial(eager, first_explanation(str(error))))
    return ways


def run_first(
    ways: Sequence[Callable[..., R]], args: Sequence[object], kwargs: Mapping[str, object]
) -> R:
    """Return the result of the first of these functions that Dynamo can trace."""
    for k, way in enumerate(ways, 1):
        try:
            return way(*args, **kwargs)
        except TRACE_ERRORS as error:
            if k == len(ways) or _last_user_frame(error) is not None:
                raise shortened(error)  # noqa: B904  # the same error
    raise AssertionError("there is a way")


def shortened(error: Exception) -> Exception:
    """Return the error; one of tracing without the frames after the user's last one.

    So does torch with other errors. The message names the line that Dynamo traced. With
    TORCHDYNAMO_VERBOSE=1, nothing is dropped.
    """
    if shows_internal_frames() or not is_trace_error(error):
        return error
    last = _last_user_frame(error)
    if last is None:
        return error.with_traceback(None)
    last.tb_next = None
    return error


def _last_user_frame(error: Exception) -> TracebackType | None:
    """Return the innermost frame outside torch and this package.

    If there is one, a part of the call has run.
    """
    last, tb = None, error.__traceback__
    while tb is not None:
        last = last if is_library_file(tb.tb_frame.f_code.co_filename) else tb
        tb = tb.tb_next
    return last


def _first_error(error: BaseException) -> BaseException:
    """Return the error in whose handling this one was raised, and so on; or the error itself."""
    while error.__context__ is not None:
        error = error.__context__
    return error
