"""Modes and global state that change what a call of an operator does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from tofuse.torch_internals.fake_tensors import unset_fake_temporarily
from tofuse.torch_internals.private_names import (
    EVERYTHING,
    TRACING,
    always,
    lacking,
    private,
    returns_bool,
)

KEEPING = "no program is kept on disk"
DEVICES = ("cpu", "cuda")


def _without_autocast() -> AbstractContextManager[object]:
    stack = ExitStack()
    for device in DEVICES[: 1 + torch.cuda.is_available()]:
        stack.enter_context(torch.autocast(device, enabled=False))
    return stack


def _autocast_on() -> bool:
    return any(map(torch.is_autocast_enabled, DEVICES))


class _NoGuards:
    """Guards that no call satisfies."""

    def __init__(self, *tensors: torch.Tensor, **options: object) -> None: ...

    def check(self, *tensors: object) -> bool:
        return False


if TYPE_CHECKING:
    from torch._C._dynamo.guards import TensorGuards as TensorGuards
else:
    TensorGuards = private("torch._C._dynamo.guards", "TensorGuards", TRACING, _NoGuards)

DisableAutocast: Callable[[], AbstractContextManager[object]] = private(
    "torch._C", "_DisableAutocast", "a backward under autocast starts later", _without_autocast
)
autocast_on = private(
    "torch._C", "_is_any_autocast_enabled", "calls take longer", _autocast_on, returns_bool
)
without_python_dispatcher: Callable[[], AbstractContextManager[object]] = private(
    "torch._C", "_DisablePythonDispatcher", "gradients of `interpolate` take longer", nullcontext
)
enable_python_dispatcher: Callable[[], AbstractContextManager[object]] = private(
    "torch._dispatch.python",
    "enable_python_dispatcher",
    "programs of varying sizes are compiled more often",
    nullcontext,
)
disable_current_modes: Callable[[], AbstractContextManager[object]] = private(
    "torch.utils._python_dispatch",
    "_disable_current_modes",
    "tune='measure' fails under modes of the caller",
    unset_fake_temporarily,
)
is_traceable_wrapper_subclass: Callable[[object], bool] = private(
    "torch.utils._python_dispatch",
    "is_traceable_wrapper_subclass",
    "PyTorch runs calls with tensor subclasses, with capture='trace'",
    always(False),
)
DisableTorchFunctionSubclass: Callable[[], AbstractContextManager[object]] = private(
    "torch._C", "DisableTorchFunctionSubclass", "weights of GGUF files cannot be used", lacking
)
make_wrapper_subclass: Callable[..., torch.Tensor] = private(
    "torch", "Tensor._make_wrapper_subclass", "weights of GGUF files cannot be loaded", lacking
)
dispatch_modes: Callable[[], int] = private(
    "torch._C", "_len_torch_dispatch_stack", EVERYTHING, lacking
)
function_modes: Callable[[], int] = private(
    "torch._C", "_len_torch_function_stack", EVERYTHING, lacking
)
LIBRARY_SWITCHES: tuple[Callable[[], object], ...] = (  # which libraries operators call
    private("torch._C", "_get_mkldnn_enabled", KEEPING, lacking),
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
    torch.backends.cuda.cudnn_sdp_enabled,
    private("torch._C", "_get_sdp_priority_order", KEEPING, lacking),
    private("torch._functorch.config", "get_hash", KEEPING, lacking),
)
_saved_tensor_hooks = private(
    "torch._C._autograd", "_top_saved_tensors_default_hooks", TRACING, lacking
)
PROFILER_FLAG = "_is_profiler_enabled"  # the attribute of `profiler_state` that says so
profiler_state: object = torch.autograd.profiler
if not isinstance(
    private("torch.autograd.profiler", PROFILER_FLAG, "profiles do not name kernels", None), bool
):
    profiler_state = SimpleNamespace(**{PROFILER_FLAG: False})


def has_saved_tensor_hooks() -> bool:
    """Return whether the caller's hooks see the tensors that autograd saves."""
    return _saved_tensor_hooks(True) is not None
