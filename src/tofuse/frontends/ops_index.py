"""Ops that gather, scatter and sort elements, with torch's semantics."""

from __future__ import annotations

from tofuse.capture.lower.call import Argument
from tofuse.frontends.datatypes import DataType
from tofuse.frontends.elementwise_table import broadcast_to
from tofuse.frontends.items import Node, Number, OperandLike, Rule
from tofuse.frontends.lowering import Lowering
from tofuse.ir.graph import Value
from tofuse.ir.types import DType


def index_select(low: Lowering, arg: OperandLike, index: OperandLike, dim: OperandLike) -> Node:
    """Select slices along one dimension by a 1-d (or 0-d) tensor of integers."""
    x, index_node = low.tensor(arg), _index_tensor(low, index)
    axis = low.axis(dim, x.rank)
    if index_node.rank > 1 or not x.rank:
        raise low.error(
            "the index must have rank 0 or 1 and the tensor at least rank 1, "
            f"not {index_node.rank} and {x.rank}"
        )
    indices = (
        low.builder.reshape(index_node.value, (1,)) if index_node.rank == 0 else index_node.value
    )
    shape = (*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :])
    if _is_readable(x):
        broadcast_index = low.builder.broadcast(indices, shape, (axis,))
        return _take(low, x, x.value, broadcast_index, axis)
    args = (x.value, axis, indices)
    return low.call("aten.index_select.default", args, shape, x.dtype)


def select(low: Lowering, arg: OperandLike, index: OperandLike, dim: OperandLike) -> Node:
    """Select one slice along a dimension, which is removed."""
    x, axis = low.tensor(arg), low.axis(dim, low.tensor(arg).rank)
    if not x.rank:
        raise low.error("the tensor must have at least rank 1")
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    number = low.operand(index)
    if isinstance(number, Number):
        k, extent = low.dim(number, "the index"), x.shape[axis]
        message = f"the index {k} is out of range for dimension {axis} of size {extent}"
        if isinstance(k, int):
            low.require_at_least(extent, -k if k < 0 else k + 1, message)
            k = k + extent if k < 0 else k
        if isinstance(k, int) and k >= 0 and isinstance(extent, int):
            one = low.builder.slice(x.value, axis, k, 1)
            return Node(low.builder.reshape(one, shape), x.dtype)
        return low.call("aten.select.int", (x.value, axis, k), shape, x.dtype)
    picked = index_select(low, x, number, axis)
    return low.reshaped(picked, shape)


def gather(low: Lowering, arg: OperandLike, index: OperandLike, dim: OperandLike) -> Node:
    """Gather as torch.gather; the index may be smaller than the tensor in other dimensions."""
    x, index_node = low.tensor(arg), _index_tensor(low, index)
    axis = _matching_axis(low, x, index_node, dim)
    others = [d for d in range(x.rank) if d != axis]
    fixed = all(isinstance(e, int) for d in others for e in (x.shape[d], index_node.shape[d]))
    for d in others:
        _require_inside(low, index_node, x, d, "the tensor")
    if _is_readable(x) and (fixed or all(x.shape[d] == index_node.shape[d] for d in others)):
        value = x.value
        for d in others:
            value = low.builder.slice(value, d, 0, index_node.shape[d])
        return _take(low, x, value, index_node.value, axis)
    args = (x.value, axis, low.builder.convert(index_node.value, DType.I64))
    return low.call("aten.gather.default", args, index_node.shape, x.dtype)


def take_along_axis(low: Lowering, arg: OperandLike, index: OperandLike, dim: OperandLike) -> Node:
    """Gather as numpy.take_along_axis; the other dimensions broadcast."""
    x, index_node = low.tensor(arg), _index_tensor(low, index)
    axis = _matching_axis(low, x, index_node, dim)
    for d in range(x.rank):
        if d != axis and 1 not in (x.shape[d], index_node.shape[d]):
            low.require_equal(
                x.shape[d], index_node.shape[d], f"the tensor and the index at dimension {d}"
            )
    wide_x, wide_index = list(x.shape), list(index_node.shape)
    for d in range(x.rank):
        if d != axis:
            wide_x[d] = wide_index[d] = index_node.shape[d] if x.shape[d] == 1 else x.shape[d]
    source = low.builder.expand(x.value, tuple(wide_x))
    indices = broadcast_to(low, index_node.value, tuple(wide_index), index_node.dtype)
    if _is_readable(x):
        return _take(low, x, source, indices, axis)
    args = (source, axis, low.builder.convert(indices, DType.I64))
    return low.call("aten.gather.default", args, tuple(wide_index), x.dtype)


def scatter(
    low: Lowering, arg1: OperandLike, index: OperandLike, src: OperandLike, dim: OperandLike
) -> Node:
    """Scatter as torch.scatter: return a copy with `src` written at the indexed positions."""
    x, index_node = low.tensor(arg1), _index_tensor(low, index)
    axis, source = _matching_axis(low, x, index_node, dim), low.operand(src)
    if source.dtype.is_complex and not x.dtype.is_complex:
        raise low.error(f"complex numbers cannot be written into a tensor of {x.dtype.value}")
    for d in range(x.rank):
        if d != axis:
            _require_inside(low, index_node, x, d, "the tensor")
    positions = low.builder.convert(index_node.value, DType.I64)
    if isinstance(source, Node) and source.rank:
        if source.rank != x.rank:
            raise low.error(f"src has rank {source.rank}, but the tensor has rank {x.rank}")
        for d in range(x.rank):
            _require_inside(low, index_node, source, d, "src")
        written = low.convert(source.value, source.dtype, x.dtype)
        args = (x.value, axis, positions, written)
        return low.call("aten.scatter.src", args, x.shape, x.dtype)
    if isinstance(source, Node):  # a number that is known only at run time
        filled = low.builder.broadcast(low.value_of(source, x.dtype), index_node.shape, ())
        args = (x.value, axis, positions, low.builder.copy(filled))
        return low.call("aten.scatter.src", args, x.shape, x.dtype)
    number = (x.value, axis, positions, source.value)
    return low.call("aten.scatter.value", number, x.shape, x.dtype)


def topk(
    low: Lowering,
    arg: OperandLike,
    k: OperandLike,
    dim: OperandLike = -1,
    largest: bool = True,
    sorted: bool = False,
) -> list[Node]:
    """Return the k largest or smallest elements along a dimension, and their indices."""
    x, count = _ordered(low, arg), low.dim(k, "k")
    axis = low.axis(dim, x.rank)
    extent = x.shape[axis] if x.rank else 1
    message = f"k is {count}, out of range for a dimension of size {extent}"
    low.require_at_least(count, 0, message)
    low.require_at_least(extent - count, 0, message)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :]) if x.rank else ()
    args = (x.value, count, axis, largest, sorted)
    results = [(shape, x.dtype), (shape, DataType.Int)]
    return low.call_results("aten.topk.default", args, results, (0, 1))


def argsort(
    low: Lowering,
    arg: OperandLike,
    dim: OperandLike = -1,
    descending: bool = False,
    stable: bool = False,
) -> Node:
    x = _ordered(low, arg)
    axis = low.axis(dim, x.rank)
    keyword: dict[str, Argument] = {"stable": stable, "dim": axis, "descending": descending}
    results = [(x.shape, DataType.Int)]
    (positions,) = low.call_results("aten.sort.stable", (x.value,), results, (1,), **keyword)
    return positions


def _index_tensor(low: Lowering, index: OperandLike) -> Node:
    index_node = low.tensor(index, "the index")
    if not index_node.dtype.is_int:
        raise low.error(f"the index must have an integer type, not {index_node.dtype.value}")
    return index_node


def _ordered(low: Lowering, arg: OperandLike) -> Node:
    """Return a tensor of numbers that can be sorted."""
    x = low.tensor(arg)
    if x.dtype.is_complex:
        raise low.error("complex numbers have no order")
    return x


def _require_inside(low: Lowering, index: Node, x: Node, d: int, what: str) -> None:
    """Require that an index is no larger than a tensor at a dimension."""
    a, b = x.shape[d], index.shape[d]
    message = f"the index has size {b} at dimension {d}, more than {what} with size {a}"
    low.require_at_least(a - b, 0, message)


def _matching_axis(low: Lowering, x: Node, index: Node, dim: OperandLike) -> int:
    if x.rank != index.rank or not x.rank:
        raise low.error(
            f"the index and the tensor must have the same rank, at least 1, not {index.rank} and "
            f"{x.rank}"
        )
    return low.axis(dim, x.rank)


def _is_readable(x: Node) -> bool:
    """Whether a kernel can gather from the tensor."""
    return x.dtype.ir is not DType.OTHER and 0 not in x.shape


def _take(low: Lowering, x: Node, value: Value, index: Value, axis: int) -> Node:
    dims = tuple(-1 if d == axis else d for d in range(x.rank))
    return Node(low.builder.emit("take", (value, index), {"dims": dims, "wrap": False}), x.dtype)


INDEX: dict[str, Rule] = {
    "index_select": index_select,
    "select": select,
    "gather": gather,
    "take_along_axis": take_along_axis,
    "scatter": scatter,
    "topk": topk,
    "argsort": argsort,
}
