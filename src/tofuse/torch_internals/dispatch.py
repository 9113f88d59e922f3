"""Modes and global state that change what a call of an operator does."""

from __future__ import annotations

from collections.abc import Callable

from torch import _C
from torch._C import _DisableAutocast as DisableAutocast
from torch._C import _is_any_autocast_enabled as autocast_on
from torch._C._dynamo.guards import TensorGuards
from torch.autograd import profiler as profiler_state
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = [
    "PROFILER_FLAG",
    "profiler_state",
    "LIBRARY_SWITCHES",
    "DisableAutocast",
    "TensorGuards",
    "autocast_on",
    "disable_current_modes",
    "dispatch_modes",
    "function_modes",
    "has_saved_tensor_hooks",
    "is_traceable_wrapper_subclass",
]

PROFILER_FLAG = "_is_profiler_enabled"  # the attribute of `profiler_state` that says so
dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack
function_modes: Callable[[], int] = _C._len_torch_function_stack


LIBRARY_SWITCHES: tuple[Callable[[], object], ...] = (  # which libraries operators call
    _C._get_mkldnn_enabled,
    _C._get_flash_sdp_enabled,
    _C._get_mem_efficient_sdp_enabled,
    _C._get_math_sdp_enabled,
    _C._get_cudnn_sdp_enabled,
    _C._get_sdp_priority_order,
)


def has_saved_tensor_hooks() -> bool:
    """Return whether the caller's hooks see the tensors that autograd saves."""
    return _C._autograd._top_saved_tensors_default_hooks(True) is not None
