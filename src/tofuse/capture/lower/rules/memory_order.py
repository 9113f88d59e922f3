"""Rules for `as_strided` and its scatter where these only permute the elements."""

from __future__ import annotations

import torch
from torch.fx import Node

from tofuse.capture.lower.builder import Unsupported
from tofuse.capture.lower.call import AtenCall, LoweringRule
from tofuse.errors import CaptureError
from tofuse.ir.dims import Dim, contiguous_strides, size_hint
from tofuse.ir.graph import Value

DimOrder = tuple[int, ...]  # dimensions, the slowest first


def as_strided(call: AtenCall) -> Value:
    """View the elements, in memory order, with other strides; each must occur exactly once.

    Raises CaptureError if the operand is empty and the result is not: a graph does not record the
    storage offset of an empty view.
    """
    if call.tensor("self").type.numel == 0 and call.out.numel != 0:
        raise CaptureError("a view by as_strided of memory beside a tensor without elements")
    order = dense_dim_order(*_shape_and_strides(call))
    return _reinterpret(call, call.tensor("self"), order, call.sizes("size"), call.sizes("stride"))


def as_strided_scatter(call: AtenCall) -> Value:
    """Replace all elements by those of `src`, in the memory order of `self`."""
    shape, strides = _shape_and_strides(call)
    written = dense_dim_order(call.sizes("size"), call.sizes("stride"))
    return _reinterpret(call, call.tensor("src"), written, shape, strides)


def _shape_and_strides(call: AtenCall) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Return those of the first argument; Unsupported if the call has another offset."""
    node, sizes = call.fx_arguments["self"], call.build.sizes
    assert isinstance(node, Node)
    fake: torch.Tensor = node.meta["val"]
    start = sizes.dim(fake.storage_offset())
    if call.has("storage_offset") and call.number("storage_offset") != start:
        raise Unsupported("another storage offset")
    shape = sizes.shape(fake.shape)
    return shape, sizes.layout(fake) or contiguous_strides(shape)


def _reinterpret(
    call: AtenCall, x: Value, before: DimOrder, shape: tuple[Dim, ...], strides: tuple[Dim, ...]
) -> Value:
    """Return the elements of a tensor in the order `before` as a tensor of these strides."""
    after = dense_dim_order(shape, strides)
    flat = call.build.reshape(call.build.permute(x, before), (x.type.numel,))
    in_order = call.build.reshape(flat, tuple(shape[d] for d in after))
    return call.build.permute(in_order, tuple(after.index(d) for d in range(len(after))))


def dense_dim_order(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> DimOrder:
    """Return the dimensions, the slowest first; Unsupported for gaps or repeated elements."""
    order = tuple(sorted(range(len(shape)), key=lambda d: (shape[d] == 1, -size_hint(strides[d]))))
    dense = contiguous_strides(tuple(shape[d] for d in order))
    if any(shape[d] != 1 and strides[d] != s for d, s in zip(order, dense, strict=True)):
        raise Unsupported("strides with gaps")
    return order


MEMORY_ORDER_RULES: dict[str, LoweringRule] = {
    "aten.as_strided": as_strided,
    "aten.as_strided_scatter": as_strided_scatter,
}
