"""Which kinds of tensors can be traced, and what a guard compares of tensors around others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tofuse.torch_internals.collective_tensors import AsyncCollectiveTensor
from tofuse.torch_internals.dispatch import is_traceable_wrapper_subclass
from tofuse.torch_internals.fake_tensors import FakeTensor

Contents = tuple[object, ...]


def is_traceable(tensor: torch.Tensor) -> bool:
    """Return whether a fake tensor can replace an argument; otherwise eager runs the call."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    return is_traceable_type(tensor)


def is_traceable_type(tensor: torch.Tensor) -> bool:
    """Return whether tracing sees all that a tensor's type does: a plain one, or around such."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return True
    if isinstance(tensor, AsyncCollectiveTensor):  # whose gradient AOTAutograd loses
        return False
    if not is_traceable_wrapper_subclass(tensor):
        return False
    return all(map(is_traceable_type, _inner_tensors(tensor)))


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether it is a tensor without memory, or wraps such tensors."""
    if isinstance(tensor, FakeTensor):
        return True
    return is_traceable_wrapper_subclass(tensor) and any(map(is_fake, _inner_tensors(tensor)))


def contents_of_wrappers(
    tensors: Sequence[torch.Tensor | None],
) -> tuple[tuple[int, Contents], ...]:
    """Return the indices of the tensors that wrap others, and what these and their rest are."""
    return tuple(
        (k, _contents(t))
        for k, t in enumerate(tensors)
        if t is not None and is_traceable_wrapper_subclass(t)
    )


def _contents(tensor: torch.Tensor) -> Contents:
    """Return the context of a tensor around others, and the types and layouts of these."""
    if not is_traceable_wrapper_subclass(tensor):
        layout = (tuple(tensor.shape), tensor.stride()) if tensor.layout is torch.strided else ()
        return (type(tensor), tensor.dtype, tensor.device, *layout)
    _, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # a wrapper has it
    return (type(tensor), context, *map(_contents, _inner_tensors(tensor)))


def _inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # a wrapper has it
    inner = [getattr(tensor, name) for name in names]
    return [t for t in inner if isinstance(t, torch.Tensor)]
