"""Shape ops: views, concatenations, layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.capture.lower.builder import typed_scalar
from tofuse.frontends.datatypes import DataType
from tofuse.frontends.input_layouts import dims_slow_to_fast
from tofuse.frontends.items import (
    Item,
    Lowered,
    Node,
    Number,
    OperandLike,
    Rule,
    Shape,
    show_shape,
)
from tofuse.frontends.lowering import Lowering
from tofuse.ir.dims import Dim, exact_div, product, strides_in
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.size_expression import apply_function
from tofuse.ir.types import DType


def reshape(
    low: Lowering, arg: OperandLike, new_shape: Shape, *, original_shape: Shape | None = None
) -> Node:
    """Reshape in row-major order; one size may be -1 and is inferred."""
    if original_shape is not None:  # nvFuser's interface of 2023
        return view(low, arg, original_shape, new_shape)
    return _reshape_to(low, low.tensor(arg), low.dims(new_shape, "new_shape"))


def view(low: Lowering, arg: OperandLike, original_shape: Shape, new_shape: Shape) -> Node:
    """Reshape (nvFuser's interface of 2022); the tensor's sizes must equal `original_shape`."""
    x = low.tensor(arg)
    before = low.dims(original_shape, "original_shape")
    if len(before) != x.rank:
        raise low.error(f"original_shape has {len(before)} entries for a tensor of rank {x.rank}")
    for d, extent in enumerate(before):
        low.require_equal(x.shape[d], extent, f"original_shape at dimension {d}")
    return _reshape_to(low, x, low.dims(new_shape, "new_shape"))


def _reshape_to(low: Lowering, x: Node, shape: tuple[Dim, ...]) -> Node:
    if shape.count(-1) > 1:
        raise low.error("only one size of the new shape may be -1")
    if -1 in shape:
        known_size = product(d for d in shape if d != -1)
        shape = tuple(_infer_size(low, x, known_size) if d == -1 else d for d in shape)
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise low.error(f"the new shape {show_shape(shape)} has a negative size")
    return low.reshaped(x, shape)


def _infer_size(low: Lowering, x: Node, known_size: Dim) -> Dim:
    numel = product(x.shape)
    quotient = exact_div(numel, known_size)
    if quotient is not None:
        return quotient
    if isinstance(numel, int) and isinstance(known_size, int):
        raise low.error(
            f"a tensor of shape {show_shape(x.shape)} cannot be reshaped with -1: "
            f"its number of elements is not a multiple of {known_size}"
        )
    low.specialize([*x.shape, known_size])
    return low.derived_size("//", numel, apply_function("max", 1, known_size))


def permute(low: Lowering, arg: OperandLike, dims: Shape | None = None) -> Node:
    """Permute dimensions: result dimension k is operand dimension dims[k]."""
    x = low.tensor(arg)
    if dims is None:
        raise low.error("dims is missing")
    if not isinstance(dims, (list, tuple)) or len(dims) != x.rank:
        raise low.error(f"dims must be a permutation of the {x.rank} dimensions, not {dims!r}")
    order = tuple(low.axis(d, x.rank, "an entry of dims") for d in dims)
    if len(set(order)) != x.rank:
        raise low.error(f"dims {list(order)} contain a dimension twice")
    return Node(low.builder.permute(x.value, order), x.dtype)


def broadcast(low: Lowering, arg: OperandLike, is_broadcast_dim: Shape) -> Node:
    """Insert a dimension of size 1 wherever the flag is True."""
    x = low.tensor(arg)
    flags = is_broadcast_dim
    if not isinstance(flags, (list, tuple)) or not all(isinstance(f, bool) for f in flags):
        raise low.error("is_broadcast_dim must be a list of bools")
    if flags.count(False) != x.rank:
        raise low.error(
            f"is_broadcast_dim has {flags.count(False)} entries that are False "
            f"for a tensor of rank {x.rank}"
        )
    extents = iter(x.shape)
    shape = tuple(1 if new else next(extents) for new in flags)
    return low.reshaped(x, shape)


def broadcast_in_dim(low: Lowering, arg: OperandLike, shape: Shape, broadcast_dims: Shape) -> Node:
    """Broadcast to a shape; operand dimension k becomes dimension broadcast_dims[k]."""
    item = low.operand(arg)
    if not (isinstance(item, Node) and item.rank):
        item = low.cast(item, item.dtype)
    target = low.dims(shape)
    if not isinstance(broadcast_dims, (list, tuple)):
        raise low.error("broadcast_dims must be a list")
    positions = tuple(
        low.axis(d, len(target), "an entry of broadcast_dims") for d in broadcast_dims
    )
    if len(positions) != item.rank:
        raise low.error(
            f"broadcast_dims has {len(positions)} entries for a tensor of rank {item.rank}"
        )
    if list(positions) != sorted(set(positions)):
        raise low.error(f"broadcast_dims {list(positions)} must increase")
    low.require_sizes([e for d, e in enumerate(target) if d not in positions or e != -1])
    for k, place in enumerate(positions):
        if item.shape[k] != 1 and target[place] != -1:
            low.require_equal(
                item.shape[k], target[place], f"dimension {k} and the shape at {place}"
            )
    wide = tuple(
        item.shape[positions.index(d)] if e == -1 and d in positions else e
        for d, e in enumerate(target)
    )
    return Node(_broadcast_in_dim(low, item, wide, positions), item.dtype)


def _broadcast_in_dim(
    low: Lowering, x: Node, shape: tuple[Dim, ...], positions: tuple[int, ...]
) -> Value:
    if x.dtype.ir is DType.OTHER:
        unit = tuple(
            x.shape[positions.index(d)] if d in positions else 1 for d in range(len(shape))
        )
        narrow = low.checked_reshape(x.value, unit, x.dtype)
        return low.call("aten.expand.default", (narrow, shape), shape, x.dtype).value
    kept = [k for k in range(x.rank) if x.shape[k] != 1 or shape[positions[k]] == 1]
    narrow = low.checked_reshape(x.value, tuple(shape[positions[k]] for k in kept), x.dtype)
    return low.builder.broadcast(narrow, shape, tuple(positions[k] for k in kept))


def expand(low: Lowering, arg: OperandLike, shape: Shape) -> Node:
    """Expand sizes of 1; -1 keeps a size; new dimensions come first."""
    x, target = low.tensor(arg), low.dims(shape)
    new_dims = len(target) - x.rank
    if new_dims < 0:
        raise low.error(f"a tensor of rank {x.rank} cannot expand to {len(target)} dimensions")
    wide = tuple(
        x.shape[d - new_dims] if e == -1 and d >= new_dims else e for d, e in enumerate(target)
    )
    low.require_sizes(wide)
    for d in range(x.rank):
        if x.shape[d] != 1:
            low.require_equal(x.shape[d], wide[d + new_dims], f"dimension {d} and the shape")
    return Node(_broadcast_in_dim(low, x, wide, tuple(range(new_dims, len(wide)))), x.dtype)


def squeeze(
    low: Lowering,
    arg: OperandLike,
    dims: Shape,
    *,
    original_shape: Shape | None = None,
    squeeze_expanded: bool = False,
) -> Node:
    """Remove dimensions of size 1, given by number or by a flag; other options have no effect."""
    x = low.tensor(arg)
    if not isinstance(dims, (list, tuple)):
        dims = (low.integer(dims, "dims"),)  # type: ignore[arg-type]  # checked there
    if dims and all(isinstance(d, bool) for d in dims):
        if len(dims) != x.rank:
            raise low.error(f"{len(dims)} flags for a tensor of rank {x.rank}")
        squeezed_dims = {k for k, d in enumerate(dims) if d}
    else:
        if len(dims) > max(x.rank, 1):
            raise low.error(f"{len(dims)} dimensions for a tensor of rank {x.rank}")
        axes = [low.axis(d, x.rank, "an entry of dims") for d in dims]
        squeezed_dims = set(axes if x.rank else ())
    for d in sorted(squeezed_dims):
        low.require_equal(x.shape[d], 1, f"dimension {d} must have size 1")
    shape = tuple(e for d, e in enumerate(x.shape) if d not in squeezed_dims)
    return low.reshaped(x, shape)


def cat(
    low: Lowering,
    tensors: Sequence[OperandLike],
    dim: OperandLike = 0,
    manual_padding: bool = False,
) -> Node:
    """Concatenate tensors along a dimension; their other sizes must be equal."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise low.error("tensors must be a list with at least one tensor")
    operands = [low.tensor(t, f"tensor {k}") for k, t in enumerate(tensors)]
    first = operands[0]
    for p in operands:
        if p.rank != first.rank or not p.rank:
            raise low.error(f"tensors of ranks {first.rank} and {p.rank} cannot be concatenated")
    at = low.axis(dim, first.rank)
    for k, p in enumerate(operands[1:], 1):
        for d in range(first.rank):
            if d != at:
                low.require_equal(first.shape[d], p.shape[d], f"tensors 0 and {k} at dimension {d}")
    dtype = _concat_type(low, operands)
    values = []
    for p in operands:
        shape = tuple(p.shape[d] if d == at else first.shape[d] for d in range(first.rank))
        values.append(low.checked_reshape(low.convert(p.value, p.dtype, dtype), shape, dtype))
    if dtype.ir is DType.OTHER:
        total = sum((v.shape[at] for v in values), start=0)
        shape = (*values[0].shape[:at], total, *values[0].shape[at + 1 :])
        return low.call("aten.cat.default", (values, at), shape, dtype)
    concatenated = low.builder.cat(values, at)
    return Node(low.builder.copy(concatenated) if len(operands) == 1 else concatenated, dtype)


def _concat_type(low: Lowering, operands: Sequence[Node]) -> DataType:
    """Return the common type: a single type stays, even a narrow one; several are promoted."""
    types = {p.dtype for p in operands}
    return operands[0].dtype if len(types) == 1 else low.promoted_type(operands)


def size(low: Lowering, arg: OperandLike, dim: OperandLike) -> Number:
    """Return the size of one dimension as a scalar."""
    x = low.tensor(arg)
    return Number(x.shape[low.axis(dim, x.rank)], DataType.Int)


def shape(low: Lowering, arg: OperandLike) -> tuple[Item, ...]:
    """Return all sizes as a vector."""
    return tuple(Number(e, DataType.Int) for e in low.tensor(arg).shape)


def at(low: Lowering, arg: Lowered, index: OperandLike) -> Item:
    """Return one entry of a vector."""
    if not isinstance(arg, tuple):
        raise low.error("the operand must be a vector")
    k = low.integer(index, "the index")
    if not -len(arg) <= k < len(arg):
        raise low.error(f"the index {k} is out of range for a vector of {len(arg)} entries")
    return arg[k]


def stride_order(low: Lowering, arg: OperandLike, stride_order: Shape) -> Node:
    """Copy a tensor to a stride order; a larger number is a slower dimension."""
    x = low.tensor(arg)
    return with_stride_order(low, x, low.dims(stride_order, "stride_order"))


def with_stride_order(low: Lowering, x: Node, order: Sequence[Dim]) -> Node:
    """Copy a tensor to memory with this stride order."""
    numbers = [o for o in order if isinstance(o, int)]
    if sorted(numbers) != list(range(x.rank)):
        raise low.error(f"stride_order {list(order)} is not a permutation of 0 to {x.rank - 1}")
    op_count = len(low.builder.ops)
    copied = low.copy(x).value
    strides = strides_in(dims_slow_to_fast(numbers, x.rank), copied.shape)
    strided = replace(copied, strides=strides)
    low.builder.replace_results(op_count, {copied: strided})
    return Node(strided, x.dtype)


def triu(low: Lowering, arg: OperandLike, diagonal: OperandLike = 0) -> Node:
    """Return the upper triangle of the last two dimensions, with zeros elsewhere."""
    x, first = low.tensor(arg), low.dim(diagonal, "diagonal")
    if x.rank < 2:
        raise low.error(f"the tensor must have at least rank 2, not {x.rank}")
    if x.dtype.ir is DType.OTHER:
        return low.call("aten.triu.default", (x.value, first), x.shape, x.dtype)
    rows, columns = (iota_along(low, x.shape, d).value for d in (-2, -1))
    from_diagonal = low.builder.emit("sub", (columns, rows), {})
    in_triangle = low.builder.emit("ge", (from_diagonal, Scalar(first)), {})
    operands = (in_triangle, x.value, typed_scalar(0, x.dtype.ir))
    return Node(low.builder.emit("where", operands, {}), x.dtype)


def iota_along(low: Lowering, shape: tuple[Dim, ...], dim: int) -> Node:
    """Return 0, 1, 2, ... along one dimension, broadcast to the shape."""
    numbers = low.builder.iota(shape[dim], 0, 1, DType.I64)
    return Node(low.builder.broadcast(numbers, shape, (dim % len(shape),)), DataType.Int)


SHAPE: dict[str, Rule] = {
    "reshape": reshape,
    "view": view,
    "permute": permute,
    "broadcast": broadcast,
    "broadcast_in_dim": broadcast_in_dim,
    "expand": expand,
    "squeeze": squeeze,
    "cat": cat,
    "size": size,
    "shape": shape,
    "tensor_sizes": shape,
    "at": at,
    "stride_order": stride_order,
    "triu": triu,
}
