"""Dynamo: what a backend needs of it beside `torch.compile`, and settings for our own calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from traceback import FrameSummary
from types import CodeType
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

import torch
from torch.fx import Node

from tofuse.torch_internals.private_names import (
    TRACING,
    always,
    essential,
    itself,
    private,
    stand_in,
)

P = ParamSpec("P")
R = TypeVar("R")
WRAPPER_ID = "_torchdynamo_wrapper_id"  # by which torch.compile finds the function in a wrapper
BREAKS = "the report lists no graph breaks"


class GraphBreak(Protocol):
    """Why a graph was broken, and where."""

    reason: str
    user_stack: Sequence[FrameSummary]


def _error(name: str, lost: str) -> type[Exception]:
    """Return a class of Dynamo's errors, or a class that no error has."""
    return private("torch._dynamo.exc", name, lost, stand_in(name))


def _without_session() -> AbstractContextManager[object]:
    return _patch(error_on_nested_fx_trace=False)


if TYPE_CHECKING:
    from torch._dynamo.source import LocalSource as LocalSource
    from torch._dynamo.types import GuardFilterEntry as GuardFilterEntry
else:
    GuardFilterEntry = object  # only in annotations
    (LocalSource,) = essential("torch._dynamo.source", "LocalSource")

# held while a program is compiled, by torch and by us
compile_lock: RLock = private("torch._dynamo.convert_frame", "compile_lock", TRACING, RLock())
innermost_fn = private(
    "torch._dynamo.eval_frame", "innermost_fn", "a call takes about 1 us more", itself
)
OptimizedModule: type = private(
    "torch._dynamo.eval_frame",
    "OptimizedModule",
    "modules of torch.compile are not traced",
    stand_in("OptimizedModule"),
)
TorchDynamoException = _error(
    "TorchDynamoException", "PyTorch runs programs on which Dynamo would try again"
)
InternalTorchDynamoError = _error(
    "InternalTorchDynamoError",
    "programs that guard on `x.T` are not tried again without a filter of guards",
)
TorchRuntimeError = _error(
    "TorchRuntimeError",
    "programs with DTensors raise for arguments of new strides, wrong programs torch's error",
)
# raised by a backend: Python runs the frame, and frames that it calls may be compiled
SkipFrame = _error("SkipFrame", "a call of a coroutine function raises an error")
TRACE_ERRORS = (InternalTorchDynamoError, TorchRuntimeError, IndexError, AssertionError)
counters: Mapping[str, Mapping[str, int]] = private(
    "torch._dynamo.utils", "counters", BREAKS, {"unimplemented": {}}
)
graph_break_reasons: Sequence[GraphBreak] = private(
    "torch._dynamo.utils", "graph_break_reasons", BREAKS, ()
)
# of each function that was compiled again: why each of its earlier programs did not fit the call
guard_failures: Mapping[CodeType, Sequence[str]] = private(
    "torch._dynamo.utils", "guard_failures", "tofuse.explain_recompiles() lists none", {}
)
preserve_rng_state: Callable[[], AbstractContextManager[object]] = private(
    "torch._dynamo.utils",
    "preserve_rng_state",
    "a recompilation takes longer",
    torch.random.fork_rng,
)
_patch: Callable[..., AbstractContextManager[object]] = private(
    "torch._dynamo", "config.patch", "a call takes 2 us more", always(nullcontext())
)
_config: object = private("torch._dynamo", "config", "errors never show Dynamo's frames", None)
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


def uncompiled(target: object) -> object:
    """Return the function or module that torch.compile or tofuse has compiled; or the target."""
    if isinstance(target, OptimizedModule):
        original: object = target._orig_mod  # type: ignore[attr-defined]  # of a private class
        return original
    return target if isinstance(target, torch.nn.Module) else innermost_fn(target)


def update_compiled_wrapper(
    wrapper: Callable[P, R], compiled: Callable[..., object]
) -> Callable[P, R]:
    """Make Dynamo inline a wrapper, or compile it again, as what torch.compile has returned."""
    functools.update_wrapper(wrapper, compiled)
    if WRAPPER_ID in wrapper.__dict__:
        wrapper.__dict__[WRAPPER_ID] = id(wrapper)
    return wrapper


def get_source(argument: Node) -> object:
    """Return where Dynamo takes an argument of a program from; None if it says nothing."""
    return getattr(argument, "_dynamo_source", None)


def source_name(source: object) -> str:
    """Return the expression that a source stands for, such as `L['x']`; empty if it has none."""
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)  # a method in torch 2.11


def has_promised_range(tensor: object) -> bool:
    """Return whether `mark_dynamic(..., min=, max=)` promises a program for all of a range."""
    return bool(getattr(tensor, "_dynamo_dynamic_range", None))


def set_source(argument: Node, source: object) -> None:
    """Set where Dynamo takes an argument of a program from."""
    argument._dynamo_source = source


def without_profiler_marks() -> AbstractContextManager[object]:
    """Return a context in which Dynamo puts no profiler marks into the bytecode before a program.

    The marks are two calls into Python: 1.9 of the 11.5 us of a small call. The setting holds for
    this thread alone (in torch 2.11 for all threads, until the context is left).
    """
    return _patch(record_runtime_overhead=False) if _HAS_MARKS else nullcontext()


def is_trace_error(error: Exception) -> bool:
    """Return whether Dynamo raised an error while it traced a function, before the function ran.

    It wraps most errors, but not those of `TRACE_ERRORS` that have names of Python; it marks them.
    """
    wrapped = isinstance(error, (InternalTorchDynamoError, TorchRuntimeError))
    return wrapped or getattr(error, "innermost_user_frame_summary", None) is not None


def shows_internal_frames() -> bool:
    """Return whether errors show Dynamo's frames, as with TORCHDYNAMO_VERBOSE=1."""
    return bool(getattr(_config, "verbose", False))


def static_sizes() -> AbstractContextManager[object]:
    """Return a context in which Dynamo makes no size or stride symbolic because it has changed."""
    return _patch(automatic_dynamic_shapes=False)


def never_compile_frames(*functions: Callable[..., object]) -> None:
    """Make Dynamo run frames of our own functions in Python, if they are not inlined in another."""
    for function in functions:
        _skip_code(function.__code__)


def is_frame_callback_set() -> bool:
    """Return whether Dynamo compiles functions that are called now.

    So it is in a function that Dynamo runs in eager in the middle of a compiled program.
    """
    return callable(_callback())
