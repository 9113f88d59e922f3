"""Rules for ATen ops that go by places in memory, where these only reorder the elements."""

from __future__ import annotations

import torch
from torch.fx import Node

from tofuse.capture.lower.builder import Refused
from tofuse.capture.lower.call import Call, Rule
from tofuse.ir.dims import Dim, contiguous_strides, hint
from tofuse.ir.graph import Value

Order = tuple[int, ...]  # of dimensions


def as_strided(call: Call) -> Value:
    """The elements in the order of memory, read in another: where each is there, and once."""
    x, source = call.tensor("self"), _fake(call)
    _require_start(call, source)
    return _reread(call, x, _memory_order(call, source), call.sizes("size"), call.sizes("stride"))


def as_strided_scatter(call: Call) -> Value:
    """All elements replaced: what is written, read in the order of what it is written to."""
    target = _fake(call)
    _require_start(call, target)
    shape = call.build.sizes.shape(target.shape)
    written = _gapless(call.sizes("size"), call.sizes("stride"))
    strides = call.build.sizes.layout(target) or contiguous_strides(shape)
    return _reread(call, call.tensor("src"), written, shape, strides)


def _fake(call: Call) -> torch.Tensor:
    """What torch knows of the first argument."""
    node = call.node.args[0]
    if not isinstance(node, Node):
        raise Refused("no tensor whose memory is known")
    fake: torch.Tensor = node.meta["val"]
    return fake


def _require_start(call: Call, tensor: torch.Tensor) -> None:
    start = call.build.sizes.dim(tensor.storage_offset())
    if call.given("storage_offset") and call.number("storage_offset") != start:
        raise Refused("a part of the memory")


def _reread(
    call: Call, x: Value, before: Order, shape: tuple[Dim, ...], strides: tuple[Dim, ...]
) -> Value:
    """The elements of a tensor that lie in the order `before`, as a tensor that lies so."""
    after = _gapless(shape, strides)
    flat = call.build.reshape(call.build.permute(x, before), (x.type.numel,))
    laid = call.build.reshape(flat, tuple(shape[d] for d in after))
    return call.build.permute(laid, tuple(after.index(d) for d in range(len(after))))


def _memory_order(call: Call, tensor: torch.Tensor) -> Order:
    shape = call.build.sizes.shape(tensor.shape)
    strides = call.build.sizes.layout(tensor)
    return _gapless(shape, contiguous_strides(shape) if strides is None else strides)


def _gapless(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> Order:
    """The dimensions, the slowest first; refused where there are gaps, or elements repeat."""
    order = tuple(sorted(range(len(shape)), key=lambda d: (shape[d] == 1, -hint(strides[d]))))
    usual = contiguous_strides(tuple(shape[d] for d in order))
    if any(shape[d] != 1 and strides[d] != u for d, u in zip(order, usual, strict=True)):
        raise Refused("strides with gaps")
    return order


MEMORY: dict[str, Rule] = {
    "aten.as_strided": as_strided,
    "aten.as_strided_scatter": as_strided_scatter,
}
