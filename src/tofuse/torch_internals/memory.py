"""Tensors made in little time, and the number of owners that memory has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from sys import getrefcount

import torch
from torch import Tensor, UntypedStorage

from tofuse.torch_internals.dispatch import disable_current_modes
from tofuse.torch_internals.private_names import TRACING, always, has_attribute, private

MICROSECOND = "a tensor takes about 1 us more to make"
REUSE = "the memory of results is not reused"


def _empty_strided(device: str) -> Callable[[Sequence[int], Sequence[int], torch.dtype], Tensor]:
    return lambda shape, strides, dtype: torch.empty_strided(
        shape, strides, dtype=dtype, device=device
    )


def _reinterpret_tensor(
    source: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int
) -> Tensor:
    """Return a tensor on the memory of `source` that autograd does not know as a view."""
    result = torch.empty(0, dtype=source.dtype, device=source.device)
    start = source.storage_offset() + offset
    return result.set_(source.untyped_storage(), start, shape, strides)


GUARDS = "torch._C._dynamo.guards"
empty_strided_cpu = private(GUARDS, "_empty_strided_cpu", MICROSECOND, _empty_strided("cpu"))
empty_strided_cuda = private(GUARDS, "_empty_strided_cuda", MICROSECOND, _empty_strided("cuda"))
reinterpret_tensor = private(GUARDS, "_reinterpret_tensor", MICROSECOND, _reinterpret_tensor)

with torch.inference_mode(False):
    _tensor = torch.empty(1, device="cpu")
_HAS_KEY = has_attribute(_tensor.untyped_storage(), "_cdata", REUSE)
# What identifies a storage; torch keeps its Python object as long as the storage.
storage_key: Callable[[UntypedStorage], int] = attrgetter("_cdata") if _HAS_KEY else id

# Counts writes into a tensor; two calls of it are compared.
tensor_version: Callable[[Tensor], int] = (
    attrgetter("_version") if has_attribute(_tensor, "_version", TRACING) else always(0)
)

# Returns the tensor that a view was made from; None if the argument is no view.
viewed_tensor: Callable[[Tensor], Tensor | None] = (
    attrgetter("_base") if has_attribute(_tensor, "_base", TRACING) else always(None)
)

_storage_count: Callable[[int], int] = private("torch._C", "_storage_Use_Count", REUSE, always(0))
storage_use_count = _storage_count if _HAS_KEY else always(0)  # it takes the key
tensor_use_count: Callable[[Tensor], int] = private("torch", "Tensor._use_count", REUSE, always(0))


def counts_show_owners(
    storage_count: Callable[[int], int] = storage_use_count,
    tensor_count: Callable[[Tensor], int] = tensor_use_count,
    references: Callable[[object], int] = getrefcount,
) -> bool:
    """Return whether each way to hold memory or a tensor raises a count, and its end lowers it.

    If not, memory must not be reused: it may have an owner that no count shows.
    """

    def memory_counts(tensor: Tensor) -> tuple[int, int]:
        storage = tensor.untyped_storage()
        return storage_count(storage_key(storage)), references(storage)

    def tensor_counts(tensor: Tensor) -> tuple[int, int]:
        return tensor_count(tensor), references(tensor)

    with disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        tensor = torch.empty(4, device="cpu")
        weight = torch.ones(4, device="cpu", requires_grad=True)
        owners: tuple[tuple[Callable[[Tensor], tuple[int, int]], Callable[[], object]], ...] = (
            (memory_counts, tensor.detach),
            (memory_counts, lambda: tensor[1:]),
            (memory_counts, lambda: reinterpret_tensor(tensor, (2,), (1,), 0)),
            (memory_counts, tensor.untyped_storage),
            (memory_counts, tensor.numpy),
            (tensor_counts, lambda: tensor),
            (tensor_counts, lambda: torch.mul(tensor, weight)),  # saves it
        )
        for counts, make in owners:
            single = counts(tensor)
            owner: object = make()
            if all(now <= one for now, one in zip(counts(tensor), single, strict=True)):
                return False
            del owner
            if counts(tensor) != single:
                return False
    return tensor_count(tensor) == 1
