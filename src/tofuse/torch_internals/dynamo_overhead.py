"""A patch that removes Dynamo's profiler marks and guard timing from our programs.

Replaces, while one of our programs is compiled, `torch._dynamo.config.record_runtime_overhead` and
`torch._dynamo.guards.profile_guard_manager`; both are restored when compiling ends. The profiler
marks are two calls into Python in the bytecode before a program: a fifth of the time of a small
call. Timing the guards, for Dynamo's debug log, empties the caches: 25 to 40 ms of every
compilation. Without the patch, only this time is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import ModuleType

from torch._dynamo import config, guards
from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._guards import CompileContext
from torch.fx import GraphModule

from tofuse.torch_internals.torch_types import Backend


def without_dynamo_overhead(backend: Backend) -> Backend:
    """Return `backend` with Dynamo's profiler marks and guard timing switched off.

    Dynamo emits the marks and times the guards after the backend has returned, so the settings are
    restored by a callback when compiling ends. Guards are still timed if the debug log is on.
    """

    def patched(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        if CompileContext.try_get() is not None:
            if config.record_runtime_overhead:
                _patch(config, "record_runtime_overhead", False)
            if not guards.guards_log.isEnabledFor(logging.DEBUG):
                _patch(guards, "profile_guard_manager", _skip_profiling)
        return backend(gm, example_inputs)

    return patched


def _skip_profiling(*guards_and_locals: object) -> float:
    return 0.0


def _patch(module: ModuleType, name: str, value: object) -> None:
    if _restore not in callback_handler.end_callbacks:  # a reset of Dynamo removes it
        callback_handler.register_end_callback(_restore)
    _original_values.setdefault((module, name), getattr(module, name))
    setattr(module, name, value)


def _restore(args: CallbackArgs) -> None:
    for (module, name), value in _original_values.items():
        setattr(module, name, value)
    _original_values.clear()


_original_values: dict[tuple[ModuleType, str], object] = {}
