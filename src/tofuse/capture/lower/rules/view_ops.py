"""Rules for ATen ops that rearrange, concatenate or gather elements."""

from __future__ import annotations

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import guard_or_false

from tofuse.capture.fx.sizes import IntLike
from tofuse.capture.lower.builder import Unsupported, typed_scalar
from tofuse.capture.lower.call import AtenCall, LoweringRule, canonicalize_dim
from tofuse.ir.dims import Dim, SymDim, product
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.types import DType


def identity(call: AtenCall) -> Value:
    return call.tensor("self")


def reshape(call: AtenCall) -> Value:
    """Lower any view of the elements in row-major order; torch has checked its shape."""
    return call.build.reshape(call.tensor("self"), call.out.shape)


def expanded(name: str) -> LoweringRule:
    """Return the rule of an argument in the dtype and shape of the result."""

    def rule(call: AtenCall) -> Value:
        converted = call.build.convert(call.tensor(name), call.out.dtype)
        return call.build.expand(converted, call.out.shape)

    return rule


def permute(call: AtenCall) -> Value:
    x = call.tensor("self")
    dims = tuple(canonicalize_dim(d, len(x.shape)) for d in call.integers("dims"))
    return call.build.permute(x, dims)


def transpose(call: AtenCall) -> Value:
    x = call.tensor("self")
    rank = len(x.shape)
    if rank < 2:
        return x
    a, b = (call.dim("dim0", rank), call.dim("dim1", rank)) if call.has("dim0") else (0, 1)
    dims = list(range(rank))
    dims[a], dims[b] = b, a
    return call.build.permute(x, tuple(dims))


def select(call: AtenCall) -> Value:
    x = call.tensor("self")
    dim = call.dim("dim", len(x.shape))
    start = slice_start(call, "index", x.shape[dim], _torch_extent(call, dim))
    return call.build.reshape(call.build.slice(x, dim, start, 1), call.out.shape)


def slice_(call: AtenCall) -> Value:
    x, out = call.tensor("self"), call.out.shape
    dim = call.dim("dim", len(x.shape))
    start: Dim = 0
    if call.has("start") and out[dim] != 0:
        start = slice_start(call, "start", x.shape[dim], _torch_extent(call, dim))
    return call.build.slice(x, dim, start, out[dim], call.integer("step"))


def _torch_extent(call: AtenCall, dim: int) -> IntLike:
    source = call.fx_arguments["self"]
    assert isinstance(source, Node)
    extent: IntLike = source.meta["val"].shape[dim]
    return extent


def slice_start(call: AtenCall, name: str, extent: Dim, torch_extent: IntLike) -> Dim:
    """Return an argument as an index counted from the front; below zero it becomes zero.

    For symbolic sizes a guard must ensure that it is inside. `torch_extent` is torch's size of
    `extent`.
    """
    start = call.arguments[name]
    if isinstance(start, int):
        if start >= 0:
            return start
        if isinstance(extent, int):
            return max(0, start + extent)
    elif not isinstance(start, SymDim):
        raise Unsupported("an index that is no number")
    torch_start, from_end = torch_size(call.fx_arguments[name]), isinstance(start, int)
    from_front = torch_extent + torch_start if from_end else torch_start
    if from_end and guard_or_false(from_front <= 0):
        return 0
    if not (guard_or_false(from_front >= 0) and guard_or_false(from_front <= torch_extent)):
        raise Unsupported("a symbolic index")
    return extent + start if from_end else start


def torch_size(argument: object) -> IntLike:
    """Return a number of a call as torch has it."""
    value = argument.meta["val"] if isinstance(argument, Node) else argument
    if not isinstance(value, (int, torch.SymInt)):
        raise Unsupported("an index that is no number")
    return value


def diagonal(call: AtenCall) -> Value:
    """Slice the flattened rows with a step of one row and one element."""
    x, rank, offset = call.tensor("self"), len(call.tensor("self").shape), call.integer("offset")
    first, second = call.dim("dim1", rank), call.dim("dim2", rank)
    width, count = require_static(x.shape[second]), require_static(call.out.shape[-1])
    if count == 0 or x.layout[first] != width * x.layout[second]:
        raise Unsupported("a diagonal of rows that are not adjacent")
    others = [d for d in range(rank) if d not in (first, second)]
    rows = call.build.permute(x, (*others, first, second))
    flat = call.build.reshape(rows, (*rows.shape[:-2], product(rows.shape[-2:])))
    start = offset if offset >= 0 else -offset * width
    return call.build.slice(flat, rank - 2, start, count, width + 1)


def split(call: AtenCall) -> tuple[Value, ...]:
    """Lower `split`, `split_with_sizes` and `unbind` to consecutive slices."""
    x, slices = call.tensor("self"), list[Value]()
    start: Dim = 0
    dim = call.dim("dim", len(x.shape))
    for result in call.node.meta["val"]:
        shape = call.build.sizes.shape(result.shape)
        extent = shape[dim] if len(shape) == len(x.shape) else 1
        result_slice = call.build.slice(x, dim, start, extent)
        slices.append(call.build.reshape(result_slice, shape))
        start = extent + start
    return tuple(slices)


def flip(call: AtenCall) -> Value:
    x = call.tensor("self")
    for dim in call.dims("dims", len(x.shape)) if call.integers("dims") and x.shape else ():
        extent = x.shape[dim]
        if not isinstance(extent, int) or extent > 1:
            x = call.build.slice(x, dim, extent - 1, extent, -1)
    return x


def repeat(call: AtenCall) -> Value:
    """Reshape each dimension (e) to (1, e), expand it to (times, e) and merge it."""
    x, times = call.tensor("self"), call.sizes("repeats")
    extents = (1,) * (len(times) - len(x.shape)) + x.shape
    paired: list[Dim] = []
    for t, e in zip(times, extents, strict=True):
        paired += [t, e]
    unsqueezed = tuple(1 if k % 2 == 0 else e for k, e in enumerate(paired))
    expanded = call.build.expand(call.build.reshape(x, unsqueezed), tuple(paired))
    return call.build.reshape(expanded, call.out.shape)


def pad(call: AtenCall) -> Value:
    """Pad by positive amounts, slice by negative ones."""
    x, amounts, rank = call.tensor("self"), call.integers("pad"), len(call.out.shape)
    low, high = [0] * rank, [0] * rank
    for k in range(len(amounts) // 2):
        low[rank - 1 - k], high[rank - 1 - k] = amounts[2 * k], amounts[2 * k + 1]
    for d in range(rank):
        cut = max(0, -low[d])
        x = call.build.slice(x, d, cut, x.shape[d] - cut - max(0, -high[d]))
    fill = call.number("value") if call.has("value") else 0
    low, high = ([max(0, n) for n in amounts] for amounts in (low, high))
    constant = typed_scalar(fill, x.dtype) if x.dtype.is_float else Scalar(fill)
    return call.build.pad(x, tuple(low), tuple(high), constant)


def cat(call: AtenCall) -> Value:
    """Concatenate in the result's dtype; ATen ignores empty 1-d operands."""
    out = call.out
    operands = [
        t for t in call.elements("tensors", Value) if t.shape != (0,) or len(out.shape) == 1
    ]
    if not operands:
        raise Unsupported("a concat of empty tensors")
    dim = call.dim("dim", len(out.shape))
    return call.build.cat([call.build.convert(x, out.dtype) for x in operands], dim)


def stack(call: AtenCall) -> Value:
    out = call.out
    dim = call.dim("dim", len(out.shape))
    shape = (*out.shape[:dim], 1, *out.shape[dim + 1 :])
    converted = (call.build.convert(t, out.dtype) for t in call.elements("tensors", Value))
    operands = [call.build.reshape(t, shape) for t in converted]
    return call.build.cat(operands, dim)


def embedding(call: AtenCall) -> Value:
    return _take_slices(call, call.tensor("weight"), call.tensor("indices"), 0, wraps=False)


def index_select(call: AtenCall) -> Value:
    x, index = call.tensor("self"), call.tensor("index")
    if len(x.shape) == 0 or len(index.shape) != 1:
        raise Unsupported("a 0-d selection")
    return _take_slices(call, x, index, call.dim("dim", len(x.shape)), wraps=False)


def index(call: AtenCall, bounded: bool = True) -> Value:
    """Lower `x[:, i]`, or `x[i, j]` of adjacent dimensions; a mask is left to PyTorch.

    If `bounded`, indices are checked.
    """
    x = call.tensor("self")
    indices = {k: i for k, i in enumerate(call.optional_tensors("indices")) if i is not None}
    dims = list(indices)
    if len(dims) == 1:
        return _take_slices(call, x, indices[dims[0]], dims[0], wraps=True)
    if bounded and any(x.layout[k] != x.layout[k + 1] * x.shape[k + 1] for k in dims[:-1]):
        raise Unsupported("several indices into dimensions with gaps")
    if not dims or len(dims) != dims[-1] - dims[0] + 1:
        raise Unsupported("indices that are not adjacent")
    return _flattened_index(call, list(indices.values()), dims[0], bounded)


def _flattened_index(call: AtenCall, indices: list[Value], first: int, bounded: bool) -> Value:
    """Combine indices into dimensions from `first` on to one into the flattened dimensions.

    If `bounded`, an index out of bounds becomes one past the end.
    """
    x, out, last = call.tensor("self"), call.out.shape, first + len(indices) - 1
    index_rank = len(out) - (len(x.shape) - len(indices))
    shape, build, flat = out[first : first + index_rank], call.build, None
    flat_extent = product(x.shape[first : last + 1])
    for i, extent in zip(indices, x.shape[first:], strict=False):
        require_index(i)
        expanded = build.expand(build.convert(i, DType.I64), shape)
        negative = build.emit("lt", (expanded, Scalar(0)), {})
        shifted = build.emit("add", (expanded, Scalar(extent)), {})
        wrapped = build.emit("where", (negative, shifted, expanded), {})
        if bounded:
            low = build.emit("ge", (wrapped, Scalar(0)), {})
            high = build.emit("lt", (wrapped, Scalar(extent)), {})
            inside = build.emit("logical_and", (low, high), {})
            wrapped = build.emit("where", (inside, wrapped, Scalar(flat_extent)), {})
        if flat is not None:
            scaled = build.emit("mul", (flat, Scalar(extent)), {})
            wrapped = build.emit("add", (scaled, wrapped), {})
        flat = wrapped
    assert flat is not None
    flat_x = build.reshape(x, (*x.shape[:first], flat_extent, *x.shape[last + 1 :]))
    return _take_slices(call, flat_x, flat, first, wraps=False)


def gather(call: AtenCall) -> Value:
    x, index = call.tensor("self"), call.tensor("index")
    require_index(index)
    if len(x.shape) == 0 or len(index.shape) != len(x.shape):
        raise Unsupported("a 0-d gather")
    dim = call.dim("dim", len(x.shape))
    for d in range(len(x.shape)):
        if d != dim:
            x = call.build.slice(x, d, 0, index.shape[d])
    dims = tuple(-1 if k == dim else k for k in range(len(x.shape)))
    return _take(call, x, index, dims, wraps=False)


def _take_slices(call: AtenCall, x: Value, index: Value, dim: int, wraps: bool) -> Value:
    """Take, for each element of `index`, the slice of `x` there along `dim`."""
    require_index(index)
    out, end = call.out.shape, dim + len(index.shape)
    expanded = call.build.broadcast(index, out, tuple(range(dim, end)))
    return _take(call, x, expanded, (*range(dim), -1, *range(end, len(out))), wraps)


def _take(call: AtenCall, x: Value, index: Value, dims: tuple[int, ...], wraps: bool) -> Value:
    if 0 in x.shape:
        raise Unsupported("a gather from an empty tensor")
    return call.build.emit("take", (x, index), {"dims": dims, "wrap": wraps})


def require_static(extent: Dim) -> int:
    """Return a static extent; Unsupported for a symbolic one."""
    if not isinstance(extent, int):
        raise Unsupported("a symbolic size")
    return extent


def require_index(index: Value) -> None:
    if index.dtype not in (DType.I64, DType.I32):
        raise Unsupported("an index that is no int32 or int64 tensor")


RESHAPES = "view _unsafe_view unsqueeze squeeze _reshape_alias"
IDENTITIES = "alias detach lift lift_fresh"

VIEW_RULES: dict[str, LoweringRule] = {
    **{f"aten.{name}": reshape for name in RESHAPES.split()},
    **{f"aten.{name}": identity for name in IDENTITIES.split()},
    "aten.expand": expanded("self"),
    "aten.permute": permute,
    "aten.transpose": transpose,
    "aten.t": transpose,
    "aten.select.int": select,
    "aten.slice.Tensor": slice_,
    "aten.diagonal": diagonal,
    **{f"aten.{name}": split for name in ("split", "split_with_sizes", "unbind")},
    "aten.flip": flip,
    "aten.repeat": repeat,
    "aten.constant_pad_nd": pad,
    "aten.cat": cat,
    "aten.stack": stack,
    "aten.embedding": embedding,
    "aten.index_select": index_select,
    "aten.index.Tensor": index,
    "aten.gather": gather,
}
