"""Strides of views: what PyTorch's `view`, `permute`, `expand` and slicing give."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.dims import (
    Dim,
    contiguous_strides,
    exact_div,
    product,
    size_hint,
    stride_order,
    strides_in,
)
from tofuse.ir.graph import Op, Value


@dataclass(frozen=True)
class MemRef:
    """The memory of a value: a strided view of `root`, with offset and strides in elements."""

    root: Value
    offset: Dim
    strides: tuple[Dim, ...]


def dense_strides(value: Value) -> tuple[Dim, ...]:
    """Return dense strides in the order of the captured ones (equal to them if they are dense)."""
    if value.is_row_major:
        return value.layout
    return strides_in(stride_order(value.layout), value.shape)


def visible_strides(value: Value) -> tuple[Dim, ...]:
    """Return the captured strides, with their gaps; dense ones if elements would overlap.

    Results of the graph have these strides.
    """
    reach = 0
    for d in reversed(stride_order(value.layout)):
        extent, stride = size_hint(value.shape[d]), size_hint(value.layout[d])
        if extent > 1 and stride <= reach:
            return dense_strides(value)
        reach += stride * max(extent - 1, 0)
    return value.layout


def captured_where_free(value: Value, memref: MemRef) -> tuple[Dim, ...]:
    """Return a memref's strides with the captured ones where they address the same elements.

    These are the strides of extents of 1, and all strides of an empty value.
    """
    if 0 in value.shape:
        return value.layout
    dims = zip(value.shape, value.layout, memref.strides, strict=True)
    return tuple(captured if n == 1 else stride for n, captured, stride in dims)


def view_memref(op: Op, source: MemRef) -> MemRef | None:
    """Return the memory reference of a view of `source`; None if no strides express the view."""
    offset = source.offset
    match op.kind:
        case "permute":
            strides: tuple[Dim, ...] | None = tuple(source.strides[d] for d in op.ints("dims"))
        case "broadcast":
            by_dim = dict(zip(op.ints("dims"), source.strides, strict=True))
            strides = tuple(by_dim.get(k, 0) for k in range(len(op.result.shape)))
        case "slice":
            starts, steps = op.dims("start"), op.ints("step")
            strides = tuple(product((s, t)) for s, t in zip(source.strides, steps, strict=True))
            offsets = [product((a, s)) for a, s in zip(starts, source.strides, strict=True)]
            if 0 not in op.result.shape:  # an empty value may have any strides
                offset = sum(offsets, offset)
        case _:
            strides = reshape_strides(op.inputs[0].shape, source.strides, op.result.shape)
    return None if strides is None else MemRef(source.root, offset, strides)


def reshape_strides(
    shape: tuple[Dim, ...], strides: tuple[Dim, ...], new: tuple[Dim, ...]
) -> tuple[Dim, ...] | None:
    """Return the strides of a reshape without a copy, as `Tensor.view` does; None if it copies."""
    if any(d == 0 for d in shape):
        return contiguous_strides(new)
    chunks: list[tuple[Dim, Dim]] = []  # (elements, stride of the innermost), outermost first
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if chunks and chunks[-1][1] == product((extent, stride)):
            chunks[-1] = (product((chunks[-1][0], extent)), stride)
        else:
            chunks.append((extent, stride))
    result: list[Dim] = []
    rest, step = chunks.pop() if chunks else (1, 1)
    for extent in reversed(new):
        if extent == 1:
            result.append(step)
            continue
        if rest == 1 and chunks:
            rest, step = chunks.pop()
        quotient = exact_div(rest, extent)
        if quotient is None:
            return None
        result.append(step)
        rest, step = quotient, product((step, extent))
    if rest != 1 or chunks:
        return None
    return tuple(reversed(result))
