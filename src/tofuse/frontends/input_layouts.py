"""Memory layouts of tensor inputs: checked against a definition, and as symbolic strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tofuse.errors import DefinitionError
from tofuse.ir.dims import Dim, product


@dataclass(frozen=True)
class StridePattern:
    """A pattern of strides, independent of sizes.

    `order` lists the dimensions from slowest to fastest. `steps[d]` is "dense" if dimension d
    follows the next faster one without a gap, "free" for any other stride, "zero" for stride 0.
    """

    order: tuple[int, ...]
    steps: tuple[str, ...]

    def strides(self, shape: Sequence[Dim], free: Callable[[int], Dim]) -> tuple[Dim, ...]:
        """Return the strides of a tensor of this shape; `free(d)` gives those not determined."""
        strides: list[Dim] = [0] * len(shape)
        step: Dim = 1
        for d in reversed(self.order):
            if self.steps[d] == "zero":
                continue
            strides[d] = step if self.steps[d] == "dense" else free(d)
            step = product((strides[d], shape[d]))
        return tuple(strides)


def stride_pattern(tensor: torch.Tensor) -> StridePattern | None:
    """Return the pattern of a tensor's strides; None if it is row-major."""
    if tensor.is_contiguous():
        return None
    shape, strides = tensor.shape, tensor.stride()
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], -shape[d], d))
    return StridePattern(tuple(order), _steps(shape, strides, order))


def _steps(sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> tuple[str, ...]:
    """Return the `steps` of a StridePattern; dimensions of size 1 are dense."""
    steps = ["dense"] * len(sizes)
    step = 1
    for d in reversed(order):
        if sizes[d] == 1:
            continue
        if strides[d] == 0:
            steps[d] = "zero"
            continue
        if strides[d] != step:
            steps[d] = "free"
        step = strides[d] * sizes[d]
    return tuple(steps)


def first_noncontiguous_dim(
    tensor: torch.Tensor, contiguity: Sequence[bool | None], stride_order: Sequence[int]
) -> int | None:
    """Return a dimension that is declared contiguous but is not; None if there is none.

    `contiguity` lists the dimensions from slowest to fastest.
    """
    if tensor.numel() == 0 or (not stride_order and tensor.is_contiguous()):
        return None
    order = dims_slow_to_fast(stride_order, tensor.dim())
    steps = _steps(tensor.shape, tensor.stride(), order)
    declared = zip(reversed(order), reversed(contiguity), strict=True)
    return next((d for d, dense in declared if dense and steps[d] != "dense"), None)


def dims_slow_to_fast(stride_order: Sequence[int], rank: int) -> list[int]:
    """Return the dimensions from slowest to fastest; a larger `stride_order` is slower."""
    if not stride_order:
        return list(range(rank))
    return sorted(range(rank), key=lambda d: -stride_order[d])


def slow_to_fast(strides: Sequence[int]) -> list[int]:
    """Return the dimensions from slowest to fastest; those of stride 0 keep their place."""
    order = sorted((d for d, s in enumerate(strides) if s), key=lambda d: -strides[d])
    for d, stride in enumerate(strides):
        if not stride:
            order.insert(d, d)
    return order


def compute_tensor_descriptor(
    sizes: Sequence[int], strides: Sequence[int]
) -> tuple[list[bool | None], list[int]]:
    """Return the contiguity from the slowest to the fastest dimension, and the stride order.

    A dimension is contiguous if it follows the next faster one without a gap; None for size 1 and
    stride 0. Dimensions of stride 0 keep their place, the others are sorted by their strides.
    """
    if len(sizes) != len(strides):
        raise DefinitionError(f"there are {len(sizes)} sizes but {len(strides)} strides")
    if any(s < 0 for s in strides):
        raise DefinitionError(f"the strides {list(strides)} are negative")
    rank, order = len(sizes), slow_to_fast(strides)
    steps = _steps(sizes, strides, order)
    contiguity = [
        None if sizes[d] == 1 or steps[d] == "zero" else steps[d] == "dense" for d in order
    ]
    return contiguity, [rank - 1 - order.index(d) for d in range(rank)]
