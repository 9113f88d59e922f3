"""The stride order that PyTorch's iterator over elements (TensorIterator) gives to results."""

from __future__ import annotations

from collections.abc import Sequence

Sizes = Sequence[int]


def iterator_order(shape: Sizes, operands: Sequence[tuple[Sizes, Sizes]]) -> tuple[int, ...]:
    """Return the dimensions by decreasing stride of a result that operands broadcast to.

    `operands` are shapes and strides. As `TensorIteratorBase::reorder_dimensions`: dimensions are
    sorted by insertion, and the first operand in which two dimensions differ decides.
    """
    strides = [_broadcast_strides(shape, *operand) for operand in operands]
    order = list(reversed(range(len(shape))))  # the fastest first
    for k in range(1, len(order)):
        for inner in reversed(range(k)):
            swap = _swap(shape, strides, order[inner], order[k])
            if swap < 0:
                break
            if swap > 0:
                order[inner], order[k] = order[k], order[inner]
                k = inner
    return tuple(reversed(order))


def _broadcast_strides(shape: Sizes, operand_shape: Sizes, strides: Sizes) -> list[int]:
    """Return an operand's strides along the result's dimensions: 0 where it is repeated."""
    missing = len(shape) - len(operand_shape)
    extents = zip(shape[missing:], operand_shape, strides, strict=True)
    return [0] * missing + [0 if m == 1 != n else stride for n, m, stride in extents]


def _swap(shape: Sizes, operands: Sequence[Sizes], inner: int, outer: int) -> int:
    """Return 1 if `inner` should be outside of `outer`, -1 if not, and 0 if no operand decides."""
    for strides in operands:
        a, b = strides[inner], strides[outer]
        if 0 in (a, b):
            continue
        if a != b:
            return 1 if a > b else -1
        if shape[inner] > shape[outer]:
            return 1
    return 0
