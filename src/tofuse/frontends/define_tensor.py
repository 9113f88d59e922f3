"""The spellings of an input tensor: by shape and contiguity, by sizes and strides, by rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tofuse.errors import DefinitionError
from tofuse.frontends.datatypes import DataType, datatype
from tofuse.frontends.input_layouts import contiguity_of
from tofuse.frontends.program import DefineTensor, Ref
from tofuse.ir.graph import Loc

Contiguity = bool | Sequence[bool | None] | Sequence[int]  # integers are strides


def tensor_input(
    result: Ref,
    loc: Loc | None,
    shape: Sequence[int] | int,
    contiguity: Contiguity,
    dtype: DataType | torch.dtype,
    is_cpu: bool,
    stride_order: Sequence[int],
) -> DefineTensor:
    """An input by its shape; DefinitionError where the lists do not fit each other."""
    extents = tuple([-1] * shape if isinstance(shape, int) else map(int, shape))
    if any(e < -1 for e in extents):
        raise DefinitionError(f"the shape {list(extents)} has a negative size that is not -1")
    order = tuple(stride_order)
    if order and sorted(order) != list(range(len(extents))):
        raise DefinitionError(f"stride_order {list(order)} does not fit {len(extents)} dimensions")
    flags = _flags(extents, contiguity)
    return DefineTensor(result, extents, flags, datatype(dtype), is_cpu, order, loc)


def strided_input(
    result: Ref,
    loc: Loc | None,
    sizes: Sequence[int],
    strides: Sequence[int],
    dtype: DataType | torch.dtype,
    static_sizes: bool,
    is_cpu: bool,
) -> DefineTensor:
    """An input by sizes and strides; sizes become symbols unless they are static or 1."""
    if len(sizes) != len(strides):
        raise DefinitionError(f"{len(sizes)} sizes and {len(strides)} strides")
    contiguity, order = contiguity_of(sizes, strides)
    shape = tuple(n if static_sizes or n == 1 else -1 for n in sizes)
    usual = list(range(len(sizes) - 1, -1, -1))
    stride_order = () if order == usual else tuple(order)
    return DefineTensor(
        result, shape, tuple(contiguity), datatype(dtype), is_cpu, stride_order, loc
    )


def _flags(shape: tuple[int, ...], contiguity: Contiguity) -> tuple[bool | None, ...]:
    """One flag a dimension, None where it is a broadcast one."""
    if isinstance(contiguity, bool):
        return tuple(None if e == 1 else contiguity for e in shape)
    flags: list[bool | int | None] = list(contiguity)
    wide = [d for d, e in enumerate(shape) if e != 1]
    if len(flags) == len(wide) != len(shape):  # the spelling of 2023 left broadcast ones out
        given = iter(flags)
        flags = [None if e == 1 else next(given) for e in shape]
    if len(flags) != len(shape):
        raise DefinitionError(f"contiguity has {len(flags)} entries for {len(shape)} dimensions")
    return tuple(None if e == 1 else bool(f) for e, f in zip(shape, flags, strict=True))


def as_strides(given: Contiguity) -> list[int] | None:
    """Strides, where these are not flags of contiguity."""
    if isinstance(given, bool) or not given or any(isinstance(x, bool) for x in given):
        return None
    found = [x for x in given if x is not None]
    return found if len(found) == len(given) else None
