"""Parse the forms of `define_tensor`: shape and contiguity, sizes and strides, or rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tofuse.errors import DefinitionError
from tofuse.frontends.datatypes import DataType, datatype
from tofuse.frontends.definition import DefineTensor, Ref
from tofuse.frontends.input_layouts import compute_tensor_descriptor, dims_slow_to_fast
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
    """Return an input defined by its shape; DefinitionError if the lists do not match."""
    extents = tuple([-1] * shape if isinstance(shape, int) else map(int, shape))
    if any(e < -1 for e in extents):
        raise DefinitionError(f"the shape {list(extents)} has a negative size that is not -1")
    rank = len(extents)
    order = tuple(k + rank if -rank <= k < 0 else k for k in stride_order)
    if order and sorted(order) != list(range(rank)):
        raise DefinitionError(
            f"stride_order {list(stride_order)} is not a permutation of {rank} dimensions"
        )
    dims = dims_slow_to_fast(order, rank)
    flags = _flags(tuple(extents[d] for d in dims), contiguity)
    if dtype is DataType.Float4_e2m1fn:
        extents = _packed(extents, dims[-1])
    return DefineTensor(result, extents, flags, _stored(dtype), is_cpu, order, loc)


def strided_input(
    result: Ref,
    loc: Loc | None,
    sizes: Sequence[int],
    strides: Sequence[int],
    dtype: DataType | torch.dtype,
    static_sizes: bool,
    is_cpu: bool,
) -> DefineTensor:
    """Return an input defined by sizes and strides; sizes are symbolic unless static or 1."""
    contiguity, order = compute_tensor_descriptor(sizes, strides)
    shape = tuple(n if static_sizes or n == 1 else -1 for n in sizes)
    row_major = list(range(len(sizes) - 1, -1, -1))
    stride_order = () if order == row_major else tuple(order)
    return DefineTensor(result, shape, tuple(contiguity), _stored(dtype), is_cpu, stride_order, loc)


def _stored(dtype: DataType | torch.dtype) -> DataType:
    """Return the type of an input; sizes of fp4 tensors are those of PyTorch's, in bytes."""
    found = datatype(dtype)
    return DataType.Float4_e2m1fn_x2 if found is DataType.Float4_e2m1fn else found


def _packed(shape: tuple[int, ...], fastest: int) -> tuple[int, ...]:
    """Return the sizes in bytes of a tensor of fp4 numbers."""
    if shape[fastest] % 2 and shape[fastest] != -1:
        raise DefinitionError(f"dimension {fastest} must have an even size, not {shape[fastest]}")
    return tuple(e // 2 if d == fastest and e != -1 else e for d, e in enumerate(shape))


def _flags(shape: tuple[int, ...], contiguity: Contiguity) -> tuple[bool | None, ...]:
    """Return one contiguity flag per dimension, None for size 1 and for expanded dimensions.

    `shape` and `contiguity` list the dimensions from slowest to fastest.
    """
    if isinstance(contiguity, bool):
        return tuple(None if e == 1 else contiguity for e in shape)
    flags: list[bool | int | None] = list(contiguity)
    wide = [d for d, e in enumerate(shape) if e != 1]
    if len(flags) == len(wide) != len(shape):  # nvFuser of 2023 omitted broadcast dimensions
        remaining = iter(flags)
        flags = [None if e == 1 else next(remaining) for e in shape]
    if len(flags) != len(shape):
        raise DefinitionError(f"contiguity has {len(flags)} entries for {len(shape)} dimensions")
    return tuple(
        None if e == 1 or f is None else bool(f) for e, f in zip(shape, flags, strict=True)
    )


def as_strides(given: Contiguity) -> list[int] | None:
    """Return the argument as strides; None if it holds contiguity flags."""
    if isinstance(given, bool) or not given or any(isinstance(x, bool) for x in given):
        return None
    strides = [x for x in given if x is not None]
    return strides if len(strides) == len(given) else None
