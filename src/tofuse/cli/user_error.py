"""Print an error of the user's code as Python does, beginning with the user's frames."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from types import TracebackType

from tofuse.capture.fx.location import is_library_file
from tofuse.torch_internals.dynamo import TorchDynamoException

CALLER_FILES = (contextlib.__file__, runpy.__file__)  # modules of Python above the user's frames


def print_error(error: Exception) -> None:
    """Print an error to stderr, as an uncaught one is: `sys.excepthook` may be the script's."""
    for e in _chain(error):
        e.__traceback__ = _user_traceback(e)
    sys.excepthook(type(error), error, error.__traceback__)


def has_user_frame(error: BaseException) -> bool:
    """Return whether the user's code led to an error."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(_is_user_file(frame.f_code.co_filename) for frame in frames)


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error, its causes and the errors in whose handling they were raised."""
    found: list[BaseException] = []
    new: list[BaseException | None] = [error]
    while new:
        e = new.pop()
        if e is not None and all(e is not known for known in found):
            found.append(e)
            new += [e.__cause__, e.__context__]
    return found


def _user_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback from the user's first frame on.

    Without such a frame, it is None for errors that name the user's line themselves, and whole for
    others, which are ours.
    """
    tb = error.__traceback__
    while tb is not None and not _is_user_file(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    names_line = isinstance(error, (SyntaxError, TorchDynamoException))
    return error.__traceback__ if tb is None and not names_line else tb


def _is_user_file(path: str) -> bool:
    """Return whether a file is no part of torch, of this package, or of Python's import system."""
    return not (is_library_file(path) or path.startswith("<") or path in CALLER_FILES)
