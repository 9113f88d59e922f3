"""A weight of a GGUF file as a tensor: its codes and scales, decoded where it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tofuse.integrations.gguf_formats import FORMATS, split_rows
from tofuse.torch_internals.dispatch import make_wrapper_subclass

aten = torch.ops.aten
MAX_UNROUNDED_ROWS = 32  # up to here, a kernel decodes in registers, and rounding takes a third
Context: TypeAlias = tuple[str, torch.dtype]


class GgufWeight(Tensor):
    """A tensor of any shape whose rows are in blocks of a GGUF format.

    An operator that reads it gets the decoded numbers. In a compiled program the decoding is part
    of the kernel that reads them, and the decoded weight is nowhere in memory. Rows that an
    embedding or an index selects are decoded alone. It takes no gradient.

    `parts` are the codes and scales, each of shape [*rows, blocks in a row, ...]; `kind` is the
    name of the format, such as "Q4_0". `dtype` is that of the decoded numbers, which are computed
    in float32. `linear` with up to 32 rows does not round them.
    """

    parts: dict[str, Tensor]
    kind: str

    @staticmethod
    def __new__(
        cls: type[GgufWeight], parts: Mapping[str, Tensor], kind: str, dtype: torch.dtype
    ) -> GgufWeight:
        *rows, blocks, _ = next(iter(parts.values())).shape
        shape = (*rows, blocks * FORMATS[kind].elements)
        device = next(iter(parts.values())).device
        self = make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        assert isinstance(self, GgufWeight)
        self.parts, self.kind = dict(parts), kind
        return self

    @classmethod
    def from_bytes(cls, rows: Tensor, kind: str, dtype: torch.dtype) -> GgufWeight:
        """Return a weight from the bytes of its rows, of dtype uint8: [*rows, bytes of a row]."""
        return cls(split_rows(rows, kind), kind, dtype)

    def decode(self) -> Tensor:
        """Return the decoded numbers in float32."""
        return FORMATS[self.kind].decode(self.parts).reshape(self.shape)

    def dequantize(self) -> Tensor:
        """Return the decoded numbers, rounded to `dtype`."""
        return self.decode().to(self.dtype)

    @property
    def stored_bytes(self) -> int:
        """The bytes of the codes and scales."""
        return sum(part.nbytes for part in self.parts.values())

    def __repr__(self) -> str:  # type: ignore[override]
        return f"GgufWeight({self.kind}, shape={tuple(self.shape)}, dtype={self.dtype})"

    def __tensor_flatten__(self) -> tuple[list[str], Context]:
        for name, part in self.parts.items():
            setattr(self, f"part_{name}", part)
        return [f"part_{name}" for name in self.parts], (self.kind, self.dtype)

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Tensor], context: Context, size: object, stride: object
    ) -> GgufWeight:
        kind, dtype = context
        parts = {name.removeprefix("part_"): part for name, part in inner.items()}
        return GgufWeight(parts, kind, dtype)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        function: Callable[..., object] = _linear if func is torch.nn.functional.linear else func
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        rule = RULES.get(func)
        result = rule(*args, **kwargs) if rule is not None else None
        if result is not None:
            return result
        args, kwargs = pytree.tree_map(_decoded, (args, kwargs))
        return func(*args, **kwargs)

    def map_parts(
        self, function: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None
    ) -> GgufWeight:
        """Return the weight whose parts are results of a function."""
        parts = {name: function(part) for name, part in self.parts.items()}
        return GgufWeight(parts, self.kind, dtype or self.dtype)


def _linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `linear(x, w, bias)`; with few rows, the numbers are not rounded to their dtype."""
    if not isinstance(w, GgufWeight) or x.numel() > MAX_UNROUNDED_ROWS * w.shape[-1]:
        return torch.nn.functional.linear(x, w, bias)
    result = torch.nn.functional.linear(x.float(), w.decode())
    return (result if bias is None else result + bias).to(x.dtype)


def _decoded(x: object) -> object:
    return x.dequantize() if isinstance(x, GgufWeight) else x


def _to_copy(
    w: GgufWeight,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **options: object,
) -> GgufWeight:
    """Return the weight on another device, or with another dtype of its decoded numbers."""
    return w.map_parts(lambda part: part.to(device or w.device), dtype)


def _embedding(w: Tensor, indices: Tensor, *options: object) -> Tensor | None:
    """Decode the rows that the indices select."""
    if not isinstance(w, GgufWeight) or w.dim() != 2:
        return None
    return w.map_parts(lambda part: part[indices]).dequantize()


def _select(w: Tensor, dim: int, index: int) -> Tensor | None:
    """Return a weight that is one of several, such as that of an expert."""
    if not isinstance(w, GgufWeight) or w.dim() < 3 or dim % w.dim() != 0:
        return None
    return w.map_parts(lambda part: part[index])


def _index(w: Tensor, indices: list[Tensor | None]) -> Tensor | None:
    """Return the weights or rows that an index of the first dimension selects."""
    first, *others = indices
    if not isinstance(w, GgufWeight) or first is None or any(i is not None for i in others):
        return None
    if first.dtype is torch.bool:
        return None
    return w.map_parts(lambda part: part[first])


RULES: dict[object, Callable[..., Tensor | None]] = {
    aten.detach.default: lambda w: w.map_parts(lambda part: part.detach()),
    aten.alias.default: lambda w: w.map_parts(lambda part: part.detach()),
    aten.clone.default: lambda w, **options: w.map_parts(lambda part: part.clone()),
    aten._to_copy.default: _to_copy,
    aten.embedding.default: _embedding,
    aten.select.int: _select,
    aten.index.Tensor: _index,
}
