"""Tensors made in little time, and how many owners they have."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from torch import Tensor, UntypedStorage
from torch._C import _storage_Use_Count as storage_use_count
from torch._C._dynamo.guards import _empty_strided_cpu as empty_strided_cpu  # type: ignore[attr-defined]  # no stubs
from torch._C._dynamo.guards import _empty_strided_cuda as empty_strided_cuda  # type: ignore[attr-defined]
from torch._C._dynamo.guards import _reinterpret_tensor as reinterpret_tensor  # type: ignore[attr-defined]

__all__ = [
    "Tensor",
    "UntypedStorage",
    "empty_strided_cpu",
    "empty_strided_cuda",
    "reinterpret_tensor",
    "storage_key",
    "storage_use_count",
    "tensor_use_count",
    "tensor_version",
]

storage_key: Callable[[UntypedStorage], int] = attrgetter("_cdata")
tensor_version: Callable[[Tensor], int] = attrgetter("_version")
tensor_use_count: Callable[[Tensor], int] = Tensor._use_count  # type: ignore[attr-defined]  # no stubs
