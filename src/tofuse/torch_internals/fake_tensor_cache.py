"""Shapes and strides of new tensors, found once for arguments that differ in where they begin.

PyTorch finds what a call makes by running it on tensors without memory, and remembers that by the
call's arguments, with their offsets into memory. So it runs anew for every piece of a split.
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


def anywhere(mode: FakeTensorMode | None) -> None:
    """Lets `mode` remember what a call makes, wherever in memory the call's arguments begin.

    Only of calls that make new tensors and nothing else: a view begins where its argument does.
    The mode stays a plain one, as which operators of higher order know it, and any other mode
    remembers as it did.
    """
    if mode is not None:
        fake_tensor.extract_tensor_metadata = _metadata
        FakeTensorMode._cache_key = _cache_key  # type: ignore[method-assign]
        mode.__dict__[_MARK] = True


_MARK = "tofuse_anywhere"
_asked = local()
_plain = fake_tensor.extract_tensor_metadata
_plain_key = FakeTensorMode._cache_key


def _cache_key(
    self: FakeTensorMode,
    state: _CacheKeyState,
    func: torch._ops.OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> _DispatchCacheKey:
    """What PyTorch remembers one call by."""
    _asked.anywhere = _MARK in self.__dict__ and _makes_new(func)
    try:
        return _plain_key(self, state, func, args, kwargs)
    finally:
        _asked.anywhere = False


def _metadata(t: torch.Tensor) -> TensorMetadata:
    """What PyTorch remembers calls by, of one argument; and what it makes results from."""
    found = _plain(t)
    if getattr(_asked, "anywhere", False):
        found.storage_offset = 0
    return found


@functools.cache
def _makes_new(func: object) -> bool:
    """Whether an operator makes new tensors, and nothing else, and writes nothing."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    schema = func._schema
    tensors = all(isinstance(r.type, torch.TensorType) for r in schema.returns)
    return tensors and not any(v.alias_info for v in (*schema.arguments, *schema.returns))
