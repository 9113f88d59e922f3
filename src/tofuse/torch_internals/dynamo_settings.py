"""How Dynamo compiles our own calls and frames, by settings that hold for these alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._dynamo.eval_frame import skip_code

_config = torch._dynamo.config
_HAS_MARKS = bool(getattr(_config, "record_runtime_overhead", False))


def without_profiler_marks() -> AbstractContextManager[object]:
    """Return a context in which Dynamo puts no profiler marks into the bytecode before a program.

    The marks are two calls into Python: 1.9 of the 11.5 us of a small call. The setting holds for
    this thread alone (in torch 2.11 for all threads, until the context is left).
    """
    return _config.patch(record_runtime_overhead=False) if _HAS_MARKS else nullcontext()


def compiling_session() -> AbstractContextManager[object]:
    """Return a context in which torch knows that a program is being compiled.

    While AOTAutograd traces outside of Dynamo, other threads could not call Dynamo's programs
    otherwise. torch 2.11 has no such context: programs of other threads run in eager meanwhile.
    """
    session = getattr(torch.compiler, "_compile_session_context", None)
    return _config.patch(error_on_nested_fx_trace=False) if session is None else session()


def never_compile_frames(*functions: Callable[..., object]) -> None:
    """Make Dynamo run frames of our own functions in Python, if they are not inlined in another."""
    for function in functions:
        skip_code(function.__code__)


def is_frame_callback_set() -> bool:
    """Return whether Dynamo compiles functions that are called now.

    So it is in a function that Dynamo runs in eager in the middle of a compiled program.
    """
    return callable(get_eval_frame_callback())
