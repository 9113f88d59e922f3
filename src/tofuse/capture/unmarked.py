"""Programs that do not say to PyTorch's profiler where Dynamo's own code begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._guards import CompileContext
from torch.fx import GraphModule

from tofuse.capture.counted import Backend

_config = torch._dynamo.config


def unmarked(backend: Backend) -> Backend:
    """`backend`, but what Dynamo puts before its programs has no marks for the profiler.

    They are two calls into Python, a fifth of what it takes to call a small program. Dynamo looks
    at its setting once the backend has returned: it is put back when compiling ends.
    """

    def quiet(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        if _config.record_runtime_overhead and CompileContext.try_get() is not None:
            if _put_back not in callback_handler.end_callbacks:  # a reset of Dynamo forgets it
                callback_handler.register_end_callback(_put_back)
            _changed.append(True)
            _config.record_runtime_overhead = False
        return backend(gm, example_inputs)

    return quiet


_changed: list[bool] = []


def _put_back(args: CallbackArgs) -> None:
    if _changed:
        _changed.clear()
        _config.record_runtime_overhead = True
