"""The transforms of torch.func: which are active, and the calls that make a vmap in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch.autograd import forward_ad

from tofuse.torch_internals.private_names import (
    EVERYTHING,
    TRACING,
    lacking,
    missing_names,
    private,
    returns_bool,
    takes,
)

VMAP = "branches are not vectorized, and images are not stored channels last"
FUNCTORCH = "torch._C._functorch"
PREDISPATCH = "torch._functorch.predispatch"

transforms_active: Callable[[], bool] = private(
    "torch._C",
    "_are_functorch_transforms_active",
    EVERYTHING,
    lacking,
    returns_bool,
)
is_functorch_wrapped_tensor: Callable[[torch.Tensor], bool] = private(
    FUNCTORCH, "is_functorch_wrapped_tensor", TRACING, lacking
)
get_unwrapped: Callable[[torch.Tensor], torch.Tensor] = private(
    FUNCTORCH, "get_unwrapped", TRACING, lacking
)
_forward_ad_level = private(
    "torch.autograd.forward_ad",
    "_current_level",
    EVERYTHING,
    -1,
    lambda level: isinstance(level, int),
)


def _vmap_function(module: str, name: str, *parameters: str) -> Callable[..., object]:
    check = takes(*parameters) if parameters else None
    return private(module, name, VMAP, lacking, check)


enter_vmap = _vmap_function(PREDISPATCH, "_vmap_increment_nesting", "batch_size", "randomness")
leave_vmap = _vmap_function(PREDISPATCH, "_vmap_decrement_nesting")
add_batch_dim = _vmap_function(PREDISPATCH, "_add_batch_dim", "self", "batch_dim", "level")
remove_batch_dim = _vmap_function(
    PREDISPATCH, "_remove_batch_dim", "self", "level", "batch_size", "out_dim"
)
load_vmap_decompositions = _vmap_function(PREDISPATCH, "lazy_load_decompositions")
_innermost_transform = _vmap_function(FUNCTORCH, "peek_interpreter_stack")
_vmap_fallback_enabled = _vmap_function(FUNCTORCH, "_is_vmap_fallback_enabled")
_set_vmap_fallback = _vmap_function(FUNCTORCH, "_set_vmap_fallback_enabled")
vmap_functions: ModuleType = private(
    "torch._functorch", "predispatch", "programs with a vmap are not kept on disk", torch
)
CAN_VMAP = all(n.lost != VMAP for n in missing_names())


def forward_mode_active() -> bool:
    """Return whether forward-mode AD is active."""
    return forward_ad._current_level >= 0


def leave_all_vmaps() -> None:
    """Leave the vmaps that an error left open."""
    while _innermost_transform() is not None:
        leave_vmap()


@contextmanager
def without_vmap_fallback() -> Iterator[None]:
    """Make vmap raise an error instead of calling an operator slice by slice."""
    enabled = _vmap_fallback_enabled()
    _set_vmap_fallback(False)
    try:
        yield
    finally:
        _set_vmap_fallback(enabled)
