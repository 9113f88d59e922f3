"""Programs of which Dynamo does not measure how long its own code takes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import ModuleType

from torch._dynamo import config, guards
from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._guards import CompileContext
from torch.fx import GraphModule

from tofuse.torch_internals.torch_types import Backend


def unmarked(backend: Backend) -> Backend:
    """`backend`, but what Dynamo puts before its programs has no marks for the profiler, and its
    guards are not timed.

    The marks are two calls into Python, a fifth of what it takes to call a small program. To time
    guards, for its log, it empties the caches: 25 to 40 ms of every compilation. Dynamo does both
    once the backend has returned: all is put back when compiling ends.
    """

    def quiet(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        if CompileContext.try_get() is not None:
            if config.record_runtime_overhead:
                _change(config, "record_runtime_overhead", False)
            if not guards.guards_log.isEnabledFor(logging.DEBUG):
                _change(guards, "profile_guard_manager", _untimed)
        return backend(gm, example_inputs)

    return quiet


def _untimed(*guards_and_locals: object) -> float:
    return 0.0


def _change(holder: ModuleType, name: str, value: object) -> None:
    if _put_back not in callback_handler.end_callbacks:  # a reset of Dynamo forgets it
        callback_handler.register_end_callback(_put_back)
    _before.setdefault((holder, name), getattr(holder, name))
    setattr(holder, name, value)


def _put_back(args: CallbackArgs) -> None:
    for (holder, name), value in _before.items():
        setattr(holder, name, value)
    _before.clear()


_before: dict[tuple[ModuleType, str], object] = {}
