"""Slices and pads."""

from __future__ import annotations

from tofuse.capture.lower.builder import typed_scalar
from tofuse.frontends.items import (
    Item,
    Node,
    OperandLike,
    Rule,
    Shape,
    is_constant,
    is_scalar,
)
from tofuse.frontends.lowering import Lowering
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.graph import Scalar
from tofuse.ir.types import DType


def slice_(
    low: Lowering,
    arg: OperandLike,
    start_indices: Shape,
    end_indices: Shape,
    strides: Shape | None = None,
    manual_normalization: bool = False,
) -> Node:
    """Slice each dimension from start to end; an end beyond the size is clamped to it.

    Constant starts and ends count from the front; computed ones may be negative and count from the
    back, as in nvFuser. All strides are 1.
    """
    x = low.tensor(arg)
    starts, ends = low.dims(start_indices, "start_indices"), low.dims(end_indices, "end_indices")
    steps = (1,) * x.rank if strides is None else low.dims(strides, "strides")
    if not len(starts) == len(ends) == len(steps) == x.rank:
        raise low.error(
            f"{len(starts)} starts, {len(ends)} ends and {len(steps)} strides "
            f"for a tensor of rank {x.rank}"
        )
    value = x.value
    for d, (start, end, step) in enumerate(zip(starts, ends, steps, strict=True)):
        _check_range(low, d, start, end, step)
        extent = value.shape[d]
        known = all(isinstance(e, int) for e in (start, end, extent))
        if known or (start == 0 and end == extent):
            begin, count = _resolve_range(start, end, extent)
            value = low.builder.slice(value, d, begin, count)
            continue
        low.specialize([start, end, extent])
        args = (value, d, start, end)
        length = low.derived_size("slice_length", extent, start, end, 1)
        shape = (*value.shape[:d], length, *value.shape[d + 1 :])
        value = low.call("aten.slice.Tensor", args, shape, x.dtype).value
    return Node(value, x.dtype)


def _check_range(low: Lowering, d: int, start: Dim, end: Dim, step: Dim) -> None:
    """Raise DefinitionError for constants that nvFuser refuses, with its sentence."""
    if low.static_sizes:  # the definition was checked, and what it computes is constant, too
        return
    if isinstance(start, int) and start < 0:
        raise low.error(
            "Slice operation start_indices must be greater than or equal to 0. "
            f"Dimension {d} starts at {start}"
        )
    if isinstance(start, int) and isinstance(end, int) and end < start:
        raise low.error(
            "Slice operation end_indices must be greater than or equal to start_indices. "
            f"Dimension {d} starts at {start}, after its end {end}"
        )
    if step != 1:
        raise low.error(
            "nvFuser Limitation: All slice operation strides must be of const size 1. "
            f"The stride of dimension {d} is {step}"
        )


def _resolve_range(start: Dim, end: Dim, extent: Dim) -> tuple[int, Dim]:
    """Return the first element and the count, with Python's slice semantics."""
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(extent, int)):
        return 0, extent
    resolved = range(extent)[start:end]
    return (resolved.start, len(resolved)) if len(resolved) else (0, 0)


def pad(
    low: Lowering, arg: OperandLike, pad_widths: Shape, value: OperandLike | None = None
) -> Node:
    """Pad by widths before and after, from the last dimension to the first.

    A negative width crops.
    """
    x, widths = low.tensor(arg), low.dims(pad_widths, "pad_widths")
    if len(widths) % 2 or len(widths) > 2 * x.rank:
        raise low.error(
            f"pad_widths has {len(widths)} entries for a tensor of rank {x.rank}; "
            "give two per dimension"
        )
    fill = low.operand(0 if value is None else value)
    if any(isinstance(w, SymDim) for w in widths):
        low.specialize(widths)
    fixed = [w if isinstance(w, int) else 0 for w in widths]
    pairs = list(zip(fixed[-2::-2], fixed[::-2], strict=True))
    pairs = [(0, 0)] * (x.rank - len(pairs)) + pairs
    _check_fill(low, x, fill)
    padded = x.value
    for d, (front, back) in enumerate(pairs):
        message = f"the widths {front} and {back} crop more than there is of dimension {d}"
        low.require_at_least(x.shape[d] + min(0, front) + min(0, back), 0, message)
    if x.dtype.ir is DType.OTHER:
        return _pad_by_pytorch(low, x, fixed, pairs, fill)
    for d, (front, back) in enumerate(pairs):
        cut = max(0, -front)
        padded = low.builder.slice(padded, d, cut, padded.shape[d] - cut - max(0, -back))
    before, after = (tuple(max(0, pair[side]) for pair in pairs) for side in (0, 1))
    if is_constant(fill):
        assert not isinstance(fill.value, complex)
        constant = typed_scalar(fill.value, x.dtype.ir)
        return Node(low.builder.pad(padded, before, after, constant), x.dtype)
    inside = low.builder.full(padded.shape, Scalar(True), DType.BOOL)
    zeros = low.builder.pad(padded, before, after, typed_scalar(0, x.dtype.ir))
    inside = low.builder.pad(inside, before, after, Scalar(False))
    number = low.builder.broadcast(low.value_of(fill, x.dtype), zeros.shape, ())
    return Node(low.builder.where(inside, zeros, number, zeros.type), x.dtype)


def _pad_by_pytorch(
    low: Lowering, x: Node, widths: list[int], pairs: list[tuple[int, int]], fill: Item
) -> Node:
    """Pad a tensor of a type that kernels do not have."""
    if not is_constant(fill):
        raise low.error(f"the value must be a constant for {x.dtype.value} operands")
    shape = tuple(e + sum(pair) for e, pair in zip(x.shape, pairs, strict=True))
    return low.call("aten.constant_pad_nd.default", (x.value, widths, fill.value), shape, x.dtype)


def _check_fill(low: Lowering, x: Node, fill: Item) -> None:
    """Raise DefinitionError unless the tensor's type has the value that fills the padding."""
    if fill.dtype.is_complex or not is_scalar(fill):
        raise low.error("the value must be a real number")
    if fill.dtype.is_float and x.dtype.category < 2:
        raise low.error(f"the value is a {fill.dtype.value}, but the tensor's type {x.dtype.value}")


SLICE: dict[str, Rule] = {"slice": slice_, "pad": pad}
