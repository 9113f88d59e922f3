"""A weight of a GGUF file as a tensor: its codes and scales, decoded where it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor

from tofuse.errors import InputError
from tofuse.integrations.gguf_formats import FORMATS, split_rows
from tofuse.torch_internals.dispatch import (
    DisableTorchFunctionSubclass,
    make_wrapper_subclass,
)
from tofuse.torch_internals.operators import OpOverload, schema_of
from tofuse.torch_internals.trees import tree_map

aten = torch.ops.aten
# With more rows, a product packs decoded weights, in their dtype. With fewer, a kernel decodes them
# in registers, and rounding them would take a third of its time.
MAX_UNROUNDED_ROWS = 32
Context: TypeAlias = tuple[str, torch.dtype]


class GgufWeight(Tensor):
    """A tensor of any shape whose rows are in blocks of a GGUF format.

    An operator that reads it gets the decoded numbers. In a compiled program the decoding is part
    of the kernel that reads them, and the decoded weight is nowhere in memory. Rows that an
    embedding or a tensor of indices selects, and experts, are decoded alone. `linear` gives it no
    gradient. It cannot be written, except by a copy of a weight of the same format.

    `parts` are the codes and scales, each of shape [*rows, blocks in a row, ...]; `kind` is the
    name of the format, such as "Q4_0". `dtype` is that of the decoded numbers, which are computed
    in float32. `linear` with up to 32 rows does not round them.
    """

    kind: str
    part_names: list[str]  # of attributes, which PyTorch reads

    @staticmethod
    def __new__(
        cls: type[GgufWeight], parts: Mapping[str, Tensor], kind: str, dtype: torch.dtype
    ) -> GgufWeight:
        *rows, blocks, _ = next(iter(parts.values())).shape
        shape = (*rows, blocks * FORMATS[kind].elements)
        device = next(iter(parts.values())).device
        self = make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        assert isinstance(self, GgufWeight)
        self.kind, self.part_names = kind, [f"part_{name}" for name in parts]
        for name, part in zip(self.part_names, parts.values(), strict=True):
            setattr(self, name, part)
        return self

    @classmethod
    def from_bytes(cls, rows: Tensor, kind: str, dtype: torch.dtype) -> GgufWeight:
        """Return a weight from the bytes of its rows, of dtype uint8: [*rows, bytes of a row]."""
        if kind not in FORMATS:
            raise InputError(f"{kind} is none of the formats {', '.join(FORMATS)}")
        return cls(split_rows(rows, kind), kind, dtype)

    @property
    def parts(self) -> dict[str, Tensor]:
        """The codes and scales, by their names in the format."""
        return {name.removeprefix("part_"): getattr(self, name) for name in self.part_names}

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
        return self.part_names, (self.kind, self.dtype)

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
        if func is Tensor.__setitem__ and isinstance(args[0], cls):
            _write(func, args[0])
        function: Callable[..., object] = _linear if func is torch.nn.functional.linear else func
        with DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        if _writes_a_weight(func, args, kwargs):
            return _write(func, *args[:2])
        rule = RULES.get(func)
        result = rule(*args, **kwargs) if rule is not None else None
        if result is not None:
            return result
        args, kwargs = tree_map(_decoded, (args, kwargs))
        return func(*args, **kwargs)

    def map_parts(
        self, function: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None
    ) -> GgufWeight:
        """Return the weight whose parts are results of a function."""
        parts = {name: function(part) for name, part in self.parts.items()}
        return GgufWeight(parts, self.kind, dtype or self.dtype)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `linear(input, weight, bias)`; with few rows, the numbers are not rounded."""
    linear = torch.nn.functional.linear
    if not isinstance(weight, GgufWeight):
        return linear(input, weight, bias)
    few = input.numel() <= MAX_UNROUNDED_ROWS * weight.shape[-1]
    dtypes = {input.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype}
    narrow = weight.dtype in (torch.float16, torch.bfloat16) and len(dtypes) == 1
    if not (few and narrow) or torch.is_autocast_enabled(input.device.type):
        return linear(input, weight.dequantize(), bias)
    result = linear(input.float(), weight.decode())
    return (result if bias is None else result + bias).to(input.dtype)


def _writes_a_weight(
    func: OpOverload[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> bool:
    """Whether an operator writes into a weight, which has no number of its own to write."""
    schema = schema_of(func)
    written = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
    given = {**dict(zip((a.name for a in schema.arguments), args, strict=False)), **kwargs}
    return any(isinstance(given.get(name), GgufWeight) for name in written)


def _write(func: Callable[..., object], target: object, source: object = None) -> GgufWeight:
    """Copy the codes of a weight into another of its format; raise an error for other writes."""
    if func is aten.copy_.default and isinstance(target, GgufWeight) and _is_like(source, target):
        for name, part in target.parts.items():
            part.copy_(source.parts[name])
        return target
    raise RuntimeError(
        f"a weight in codes cannot be written by {func}; assign another tensor in its place "
        "(load_state_dict has assign=True), or copy a weight of the same format"
    )


def _is_like(source: object, target: GgufWeight) -> TypeGuard[GgufWeight]:
    """Whether an object is a weight of the target's format and shape."""
    if not isinstance(source, GgufWeight):
        return False
    return (source.kind, source.shape) == (target.kind, target.shape)


def _decoded(x: object) -> object:
    return x.dequantize() if isinstance(x, GgufWeight) else x


def _to_copy(
    w: GgufWeight,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **options: object,
) -> Tensor:
    """Return the weight on another device, or with another dtype of its decoded numbers.

    Its codes stay. Of a dtype that has no fractions, it is no weight any more.
    """
    if dtype is not None and not dtype.is_floating_point:
        return w.dequantize().to(dtype=dtype, device=device)
    return w.map_parts(lambda part: part.to(device or w.device), dtype)


def _embedding(w: Tensor, indices: Tensor, *options: object) -> Tensor | None:
    """Decode the rows that the indices select."""
    if not isinstance(w, GgufWeight) or w.dim() != 2:
        return None
    rows = w.map_parts(lambda part: part.index_select(0, indices.flatten())).dequantize()
    return rows.unflatten(0, indices.shape)


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

torch.serialization.add_safe_globals([GgufWeight])
