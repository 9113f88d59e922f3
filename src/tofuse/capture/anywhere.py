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


class AnywhereMode(FakeTensorMode):
    """A mode that remembers what a call makes, wherever in memory the call's arguments begin.

    Only of calls that make new tensors and nothing else: a view begins where its argument does.
    """

    def _cache_key(
        self,
        state: _CacheKeyState,
        func: torch._ops.OpOverload,
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> _DispatchCacheKey:
        _asked.anywhere = _makes_new(func)
        try:
            return super()._cache_key(state, func, args, kwargs)
        finally:
            _asked.anywhere = False


def anywhere(mode: FakeTensorMode | None) -> None:
    """Lets `mode` remember wherever arguments begin; nothing where it is no plain mode."""
    if type(mode) is not FakeTensorMode:
        return
    fake_tensor.extract_tensor_metadata = _metadata
    mode.__class__ = AnywhereMode


_asked = local()
_plain = fake_tensor.extract_tensor_metadata


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
