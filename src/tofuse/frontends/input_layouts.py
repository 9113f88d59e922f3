"""How tensor inputs lie in memory: what a definition demands, and what a call brings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tofuse.ir.dims import Dim, product


@dataclass(frozen=True)
class Layout:
    """A pattern of strides that many sizes share.

    `order` lists the dimensions from the slowest to the fastest; `steps[d]` says whether
    dimension d follows "dense" on the next faster one, has a "free" stride, or repeats ("zero").
    """

    order: tuple[int, ...]
    steps: tuple[str, ...]

    def strides(self, shape: Sequence[Dim], free: Callable[[int], Dim]) -> tuple[Dim, ...]:
        """The strides of a tensor of this shape; `free(d)` names those that are not known."""
        found: list[Dim] = [0] * len(shape)
        step: Dim = 1
        for d in reversed(self.order):
            if self.steps[d] == "zero":
                continue
            found[d] = step if self.steps[d] == "dense" else free(d)
            step = product((found[d], shape[d]))
        return tuple(found)


def layout_of(tensor: torch.Tensor) -> Layout | None:
    """The pattern that a tensor follows; None where it is row-major."""
    if tensor.is_contiguous():
        return None
    shape, strides = tensor.shape, tensor.stride()
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], -shape[d], d))
    steps = ["dense"] * len(shape)
    step = 1
    for d in reversed(order):
        if shape[d] == 1:
            continue
        if strides[d] == 0:
            steps[d] = "zero"
            continue
        if strides[d] != step:
            steps[d] = "free"
        step = strides[d] * shape[d]
    return Layout(tuple(order), tuple(steps))


def breach(
    tensor: torch.Tensor, contiguity: Sequence[bool | None], stride_order: Sequence[int]
) -> int | None:
    """The first dimension that is declared contiguous and is not; None where all are."""
    if tensor.numel() == 0 or (not stride_order and tensor.is_contiguous()):
        return None
    rank = tensor.dim()
    order = slow_to_fast(stride_order, rank)
    step = 1
    for d in reversed(order):
        if tensor.shape[d] == 1:
            continue
        if contiguity[d] and tensor.stride(d) != step:
            return d
        step = tensor.stride(d) * tensor.shape[d]
    return None


def slow_to_fast(stride_order: Sequence[int], rank: int) -> list[int]:
    """Dimensions from the slowest to the fastest; in `stride_order` a larger number is slower."""
    if not stride_order:
        return list(range(rank))
    return sorted(range(rank), key=lambda d: -stride_order[d])


def ordered_strides(shape: Sequence[Dim], stride_order: Sequence[int]) -> tuple[Dim, ...]:
    """Dense strides in this order."""
    order = tuple(slow_to_fast(stride_order, len(shape)))
    return Layout(order, ("dense",) * len(shape)).strides(shape, lambda d: 0)


def contiguity_of(
    sizes: Sequence[int], strides: Sequence[int]
) -> tuple[list[bool | None], list[int]]:
    """Which dimensions follow densely on the next faster one, and the stride order."""
    rank = len(sizes)
    order = sorted(range(rank), key=lambda d: (-strides[d], d))
    contiguity: list[bool | None] = [None] * rank
    step = 1
    for d in reversed(order):
        if sizes[d] == 1 or strides[d] == 0:
            continue
        contiguity[d] = strides[d] == step
        step = strides[d] * sizes[d]
    stride_order = [0] * rank
    for place, d in enumerate(order):
        stride_order[d] = rank - 1 - place
    return contiguity, stride_order
