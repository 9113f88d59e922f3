"""How Dynamo compiles our own calls and frames, by settings that hold for these alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import CodeType

from tofuse.torch_internals.private_names import always, private


def _without_session() -> AbstractContextManager[object]:
    return _patch(error_on_nested_fx_trace=False)


_patch: Callable[..., AbstractContextManager[object]] = private(
    "torch._dynamo", "config.patch", "a call takes 2 us more", always(nullcontext())
)
_HAS_MARKS = private(
    "torch._dynamo", "config.record_runtime_overhead", "", False, lambda on: isinstance(on, bool)
)
# A context in which torch knows that a program is being compiled. While AOTAutograd traces outside
# of Dynamo, other threads could not call Dynamo's programs otherwise. torch 2.11 has no such
# context: programs of other threads run in eager meanwhile.
compiling_session: Callable[[], AbstractContextManager[object]] = private(
    "torch.compiler", "_compile_session_context", "", _without_session
)
_skip_code: Callable[[CodeType], None] = private(
    "torch._dynamo.eval_frame", "skip_code", "hints are compiled by themselves", always(None)
)
_callback: Callable[[], object] = private(
    "torch._C._dynamo.eval_frame",
    "get_eval_frame_callback",
    "hints do not hold for functions called after a graph break",
    always(None),
)


def without_profiler_marks() -> AbstractContextManager[object]:
    """Return a context in which Dynamo puts no profiler marks into the bytecode before a program.

    The marks are two calls into Python: 1.9 of the 11.5 us of a small call. The setting holds for
    this thread alone (in torch 2.11 for all threads, until the context is left).
    """
    return _patch(record_runtime_overhead=False) if _HAS_MARKS else nullcontext()


def never_compile_frames(*functions: Callable[..., object]) -> None:
    """Make Dynamo run frames of our own functions in Python, if they are not inlined in another."""
    for function in functions:
        _skip_code(function.__code__)


def is_frame_callback_set() -> bool:
    """Return whether Dynamo compiles functions that are called now.

    So it is in a function that Dynamo runs in eager in the middle of a compiled program.
    """
    return callable(_callback())
