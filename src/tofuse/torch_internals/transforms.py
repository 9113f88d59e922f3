"""The transforms of torch.func: the calls that make a vmap in a graph, and active transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _functorch as functorch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._functorch import predispatch as vmap_functions
from torch.autograd import forward_ad

__all__ = [
    "add_batch_dim",
    "enter_vmap",
    "forward_mode_active",
    "get_unwrapped",
    "is_functorch_wrapped_tensor",
    "leave_all_vmaps",
    "leave_vmap",
    "load_vmap_decompositions",
    "remove_batch_dim",
    "transforms_active",
    "vmap_functions",
    "without_vmap_fallback",
]

enter_vmap: Callable[[int, str], int] = vmap_functions._vmap_increment_nesting
leave_vmap: Callable[[], int] = vmap_functions._vmap_decrement_nesting
add_batch_dim: Callable[..., object] = vmap_functions._add_batch_dim
remove_batch_dim: Callable[..., object] = vmap_functions._remove_batch_dim
load_vmap_decompositions: Callable[[], None] = vmap_functions.lazy_load_decompositions


def forward_mode_active() -> bool:
    """Return whether forward-mode AD is active."""
    return forward_ad._current_level >= 0


def leave_all_vmaps() -> None:
    """Leave the vmaps that an error left open."""
    while functorch.peek_interpreter_stack() is not None:
        leave_vmap()


@contextmanager
def without_vmap_fallback() -> Iterator[None]:
    """Make vmap raise an error instead of calling an operator slice by slice."""
    enabled = functorch._is_vmap_fallback_enabled()  # type: ignore[attr-defined]  # no stubs
    functorch._set_vmap_fallback_enabled(False)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(enabled)  # type: ignore[attr-defined]
