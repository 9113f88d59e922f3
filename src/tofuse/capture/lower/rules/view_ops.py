"""Rules for ATen ops that only rearrange, join or pick elements."""

from __future__ import annotations

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import guard_or_false

from tofuse.capture.fx.sizes import Sized
from tofuse.capture.lower.builder import Refused
from tofuse.capture.lower.call import Call, Rule, wrap
from tofuse.ir.dims import Dim, SymDim, product
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.types import DType


def itself(call: Call) -> Value:
    return call.tensor("self")


def reshape(call: Call) -> Value:
    """Any view of the same elements in row-major order; torch has checked its shape."""
    return call.build.reshape(call.tensor("self"), call.out.shape)


def expand(call: Call) -> Value:
    return call.build.expand(call.tensor("self"), call.out.shape)


def permute(call: Call) -> Value:
    x = call.tensor("self")
    return call.build.permute(x, tuple(wrap(d, len(x.shape)) for d in call.integers("dims")))


def transpose(call: Call) -> Value:
    x = call.tensor("self")
    rank = len(x.shape)
    if rank < 2:
        return x
    a, b = (call.dim("dim0", rank), call.dim("dim1", rank)) if call.given("dim0") else (0, 1)
    dims = list(range(rank))
    dims[a], dims[b] = b, a
    return call.build.permute(x, tuple(dims))


def select(call: Call) -> Value:
    x = call.tensor("self")
    dim = call.dim("dim", len(x.shape))
    start = _place(call, "index", dim, x.shape[dim])
    return call.build.reshape(call.build.slice(x, dim, start, 1), call.out.shape)


def slice_(call: Call) -> Value:
    x, out = call.tensor("self"), call.out.shape
    dim = call.dim("dim", len(x.shape))
    start = _place(call, "start", dim, x.shape[dim]) if call.given("start") and out[dim] != 0 else 0
    return call.build.slice(x, dim, start, out[dim], call.integer("step"))


def _place(call: Call, name: str, dim: int, extent: Dim) -> Dim:
    """The argument behind the dimension, as a place there."""
    source, given = call.node.args[0], call.node.args[2]
    assert isinstance(source, Node)
    return place(call.arguments[name], known(given), source.meta["val"].shape[dim], extent)


def place(at: object, given: Sized, end: Sized, extent: Dim) -> Dim:
    """A place that may be counted from the end; `given` and `end` are it and the extent as torch
    knows them.

    Of symbols guards say that the place is inside; a number before the first is the first.
    """
    if isinstance(at, int) and (at >= 0 or isinstance(extent, int)):
        return at if at >= 0 else max(0, position(at, extent))
    if not isinstance(at, (int, SymDim)):
        raise Refused("a place that is no number")
    counted = isinstance(at, int)
    from_start = end + given if counted else given
    if not (guard_or_false(from_start >= 0) and guard_or_false(from_start <= end)):
        raise Refused("a place that is not fixed")
    return extent + at if counted else at


def known(argument: object) -> Sized:
    """A number of a call as torch knows it."""
    value = argument.meta["val"] if isinstance(argument, Node) else argument
    if not isinstance(value, (int, torch.SymInt)):
        raise Refused("a place that is no number")
    return value


def diagonal(call: Call) -> Value:
    """Of rows that follow each other, every so many elements."""
    x, rank, offset = call.tensor("self"), len(call.tensor("self").shape), call.integer("offset")
    first, second = call.dim("dim1", rank), call.dim("dim2", rank)
    width, count = fixed(x.shape[second]), fixed(call.out.shape[-1])
    if count == 0 or x.layout[first] != width * x.layout[second]:
        raise Refused("a diagonal of rows that lie apart")
    others = [d for d in range(rank) if d not in (first, second)]
    rows = call.build.permute(x, (*others, first, second))
    flat = call.build.reshape(rows, (*rows.shape[:-2], product(rows.shape[-2:])))
    start = offset if offset >= 0 else -offset * width
    return call.build.slice(flat, rank - 2, start, count, width + 1)


def split(call: Call) -> tuple[Value, ...]:
    """`split`, `split_with_sizes`, `chunk`, `unbind`: consecutive pieces along one dimension."""
    x, pieces = call.tensor("self"), list[Value]()
    start: Dim = 0
    dim = call.dim("dim", len(x.shape))
    for result in call.node.meta["val"]:
        shape = call.build.sizes.shape(result.shape)
        extent = shape[dim] if len(shape) == len(x.shape) else 1
        piece = call.build.slice(x, dim, start, extent)
        pieces.append(call.build.reshape(piece, shape))
        start = extent + start
    return tuple(pieces)


def flip(call: Call) -> Value:
    x = call.tensor("self")
    for dim in call.dims("dims", len(x.shape)) if call.integers("dims") and x.shape else ():
        extent = x.shape[dim]
        if not isinstance(extent, int) or extent > 1:
            x = call.build.slice(x, dim, extent - 1, extent, -1)
    return call.build.copy(x) if x is call.tensor("self") else x


def repeat(call: Call) -> Value:
    """Each dimension (e) becomes (times, e), stretched and merged."""
    x, times = call.tensor("self"), call.sizes("repeats")
    extents = (1,) * (len(times) - len(x.shape)) + x.shape
    paired: list[Dim] = []
    for t, e in zip(times, extents, strict=True):
        paired += [t, e]
    apart = tuple(1 if k % 2 == 0 else e for k, e in enumerate(paired))
    wide = call.build.expand(call.build.reshape(x, apart), tuple(paired))
    result = call.build.reshape(wide, call.out.shape)
    return call.build.copy(result) if result is x else result


def pad(call: Call) -> Value:
    """Positive amounts pad, negative ones cut off."""
    x, amounts, rank = call.tensor("self"), call.integers("pad"), len(call.out.shape)
    low, high = [0] * rank, [0] * rank
    for k in range(len(amounts) // 2):
        low[rank - 1 - k], high[rank - 1 - k] = amounts[2 * k], amounts[2 * k + 1]
    y = x
    for d in range(rank):
        cut = max(0, -low[d])
        rest = y.shape[d] - cut - max(0, -high[d])
        y = call.build.slice(y, d, cut, rest)
    fill = call.number("value") if call.given("value") else 0
    constant = Scalar(float(fill) if x.dtype.is_float else fill)  # type: ignore[arg-type]
    y = call.build.pad(y, _positive(low), _positive(high), constant)
    return call.build.copy(y) if y is x else y


def cat(call: Call) -> Value:
    """Parts meet in the result's dtype; legacy empty 1-d parts count for nothing."""
    out = call.out
    parts = [t for t in call.tensors("tensors") if t.shape != (0,) or len(out.shape) == 1]
    if not parts:
        raise Refused("nothing to concatenate")
    dim = call.dim("dim", len(out.shape))
    joined = call.build.cat([call.build.convert(p, out.dtype) for p in parts], dim)
    return call.build.copy(joined) if joined is parts[0] else joined


def stack(call: Call) -> Value:
    out = call.out
    dim = call.dim("dim", len(out.shape))
    shape = (*out.shape[:dim], 1, *out.shape[dim + 1 :])
    parts = [
        call.build.reshape(call.build.convert(t, out.dtype), shape) for t in call.tensors("tensors")
    ]
    joined = call.build.cat(parts, dim)
    return call.build.copy(joined) if len(parts) == 1 else joined


def embedding(call: Call) -> Value:
    index, shape = call.tensor("indices"), call.out.shape
    require_index(index)
    last = len(shape) - 1
    wide = call.build.broadcast(index, shape, tuple(range(last)))
    return _take(call, call.tensor("weight"), wide, (-1, last), wrapping=False)


def index_select(call: Call) -> Value:
    x, index = call.tensor("self"), call.tensor("index")
    require_index(index)
    if len(x.shape) == 0 or len(index.shape) != 1:
        raise Refused("a 0-d selection")
    dim = call.dim("dim", len(x.shape))
    wide = call.build.broadcast(index, call.out.shape, (dim,))
    dims = tuple(-1 if k == dim else k for k in range(len(x.shape)))
    return _take(call, x, wide, dims, wrapping=False)


def index(call: Call) -> Value:
    """`x[:, i]`, or `x[i, j]` of memory without gaps; a mask goes to ATen."""
    x, picked = call.tensor("self"), call.arguments["indices"]
    if not isinstance(picked, (list, tuple)):
        raise Refused("no list of indices")
    places = [k for k, p in enumerate(picked) if p is not None]
    if len(places) != 1:
        strides = x.layout
        for k in places[:-1]:
            if strides[k] != strides[k + 1] * x.shape[k + 1]:
                raise Refused("several indices into what lies apart")
        return _merged_index(call, bounded=True)
    dim, chosen = places[0], picked[places[0]]
    if not isinstance(chosen, Value):
        raise Refused("an index that is no tensor")
    require_index(chosen)
    width = len(chosen.shape)
    wide = call.build.broadcast(chosen, call.out.shape, tuple(range(dim, dim + width)))
    dims = (
        *range(dim),
        -1,
        *(k - 1 + width for k in range(dim + 1, len(x.shape))),
    )
    return _take(call, x, wide, dims, wrapping=True)


def unsafe_index(call: Call) -> Value:
    """`x[i, j]` without bounds."""
    picked = call.arguments["indices"]
    assert isinstance(picked, (list, tuple))
    return index(call) if sum(p is not None for p in picked) == 1 else _merged_index(call)


def _merged_index(call: Call, bounded: bool = False) -> Value:
    """Adjacent indices become one into the flattened dimensions: past their end, where one of
    them is out of bounds."""
    x, picked, out = call.tensor("self"), call.arguments["indices"], call.out.shape
    assert isinstance(picked, (list, tuple))
    places = [k for k, p in enumerate(picked) if p is not None]
    first, last = places[0], places[-1]
    indices = [p for p in picked if isinstance(p, Value)]
    if len(indices) != last - first + 1:
        raise Refused("indices that are not adjacent")
    width = len(out) - (len(x.shape) - len(indices))
    shape, build, flat = out[first : first + width], call.build, None
    merged = product(x.shape[first : last + 1])
    for i, extent in zip(indices, x.shape[first:], strict=False):
        require_index(i)
        wide = build.expand(build.convert(i, DType.I64), shape)
        below = build.emit("lt", (wide, Scalar(0)), {})
        shifted = build.emit("add", (wide, Scalar(extent)), {})
        here = build.emit("where", (below, shifted, wide), {})
        if bounded:
            low = build.emit("ge", (here, Scalar(0)), {})
            high = build.emit("lt", (here, Scalar(extent)), {})
            inside = build.emit("logical_and", (low, high), {})
            here = build.emit("where", (inside, here, Scalar(merged)), {})
        if flat is not None:
            here = build.emit("add", (build.emit("mul", (flat, Scalar(extent)), {}), here), {})
        flat = here
    assert flat is not None
    rows = build.reshape(x, (*x.shape[:first], merged, *x.shape[last + 1 :]))
    spread = build.broadcast(flat, out, tuple(range(first, first + width)))
    after = range(first + width, len(out))
    return _take(call, rows, spread, (*range(first), -1, *after), wrapping=False)


def gather(call: Call) -> Value:
    x, index = call.tensor("self"), call.tensor("index")
    require_index(index)
    if len(x.shape) == 0 or len(index.shape) != len(x.shape):
        raise Refused("a 0-d gather")
    dim = call.dim("dim", len(x.shape))
    for d in range(len(x.shape)):
        if d != dim:
            x = call.build.slice(x, d, 0, index.shape[d])
    dims = tuple(-1 if k == dim else k for k in range(len(x.shape)))
    return _take(call, x, index, dims, wrapping=False)


def _take(call: Call, x: Value, index: Value, dims: tuple[int, ...], wrapping: bool) -> Value:
    if 0 in x.shape:
        raise Refused("nothing to pick from")
    return call.build.emit("take", (x, index), {"dims": dims, "wrap": wrapping})


def position(index: int, extent: Dim) -> int:
    """Where an index is that may count from the end."""
    return index if index >= 0 else index + fixed(extent)


def fixed(extent: Dim) -> int:
    """An extent that is a number; others are refused."""
    if not isinstance(extent, int):
        raise Refused("a place that is not fixed")
    return extent


def _positive(amounts: list[int]) -> tuple[int, ...]:
    return tuple(max(0, a) for a in amounts)


def require_index(index: Value) -> None:
    if index.dtype not in (DType.I64, DType.I32):
        raise Refused("an index that is no integer tensor")


RESHAPES = "view _unsafe_view reshape unsqueeze squeeze _reshape_alias flatten unflatten view_as"

VIEWS: dict[str, Rule] = {
    **{f"aten.{name}": reshape for name in RESHAPES.split()},
    "aten.alias": itself,
    "aten.detach": itself,
    "aten.lift": itself,
    "aten.lift_fresh": itself,
    "aten.contiguous": itself,
    "aten.expand": expand,
    "aten.permute": permute,
    "aten.transpose": transpose,
    "aten.t": transpose,
    "aten.select.int": select,
    "aten.slice.Tensor": slice_,
    "aten.diagonal": diagonal,
    "aten.split": split,
    "aten.split_with_sizes": split,
    "aten.chunk": split,
    "aten.unbind": split,
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
