"""A patch that lets the fake tensor cache ignore the storage offsets of arguments.

Replaces `FakeTensorMode._cache_key` and `fake_tensor.extract_tensor_metadata`. PyTorch finds the
metadata of a call's results by running the call on fake tensors, and caches it by the arguments'
metadata, storage offsets included. So each slice of a split is a cache miss. The patch sets the
offsets in the key to 0, only for modes passed to `ignore_storage_offsets` and only for operators
that return new tensors. Without it, programs that compute on many slices take longer to trace.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from threading import local
from typing import TYPE_CHECKING

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

if TYPE_CHECKING:
    from torch._subclasses._fake_tensor_utils import _CacheKeyState
    from torch._subclasses.fake_tensor import TensorMetadata, _DispatchCacheKey


def ignore_storage_offsets(mode: FakeTensorMode | None) -> None:
    """Make the cache of `mode` ignore the storage offsets of arguments.

    Applies only to calls that return new tensors and nothing else: a view starts where its base
    does. The mode is marked, not subclassed, because higher-order operators check its exact type.
    Other modes cache as before.
    """
    if mode is not None:
        fake_tensor.extract_tensor_metadata = _extract_tensor_metadata
        FakeTensorMode._cache_key = _cache_key  # type: ignore[method-assign]
        mode.__dict__[_MARK] = True


_MARK = "tofuse_ignores_storage_offsets"
_thread_state = local()
_torch_extract_metadata = fake_tensor.extract_tensor_metadata
_torch_cache_key = FakeTensorMode._cache_key


def _cache_key(
    self: FakeTensorMode,
    state: _CacheKeyState,
    func: torch._ops.OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> _DispatchCacheKey:
    """Return PyTorch's cache key of one call, without storage offsets where they don't matter."""
    _thread_state.ignore_offsets = _MARK in self.__dict__ and _returns_new_tensors(func)
    try:
        return _torch_cache_key(self, state, func, args, kwargs)
    finally:
        _thread_state.ignore_offsets = False


def _extract_tensor_metadata(t: torch.Tensor) -> TensorMetadata:
    """Return the metadata of a tensor, for the cache key of a call or for a cached result."""
    metadata = _torch_extract_metadata(t)
    if getattr(_thread_state, "ignore_offsets", False):
        metadata.storage_offset = 0
    return metadata


@functools.cache
def _returns_new_tensors(func: object) -> bool:
    """Return whether an operator returns only new tensors and mutates nothing."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    schema = func._schema
    tensors = all(isinstance(r.type, torch.TensorType) for r in schema.returns)
    return tensors and not any(v.alias_info for v in (*schema.arguments, *schema.returns))
