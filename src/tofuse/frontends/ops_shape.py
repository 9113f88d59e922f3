"""Ops that only rearrange elements: views, slices, pads, concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.frontends.datatypes import DataType
from tofuse.frontends.input_layouts import ordered_strides
from tofuse.frontends.lowering import Given, Item, Lowered, Lowering, Node, Number, Rule, show
from tofuse.frontends.ops_pointwise import operand_of
from tofuse.ir.dims import Dim, SymDim, exact_div, product, show_dim
from tofuse.ir.graph import Attr, Scalar, Value
from tofuse.ir.types import DType

Shape = Lowered | Sequence[Given]


def reshape(
    low: Lowering, arg: Given, new_shape: Shape, *, original_shape: Shape | None = None
) -> Node:
    """Row-major order stays; one entry of -1 takes what is left."""
    if original_shape is not None:  # a spelling of 2023
        return view(low, arg, original_shape, new_shape)
    return _reshaped(low, low.tensor(arg), low.dims(new_shape, "new_shape"))


def view(low: Lowering, arg: Given, original_shape: Shape, new_shape: Shape) -> Node:
    """The spelling of 2022: `original_shape` fixes the sizes of a tensor that has symbols."""
    x = low.tensor(arg)
    before = low.dims(original_shape, "original_shape")
    if len(before) != x.rank:
        raise low.fail(f"original_shape has {len(before)} entries for a tensor of rank {x.rank}")
    for d, extent in enumerate(before):
        low.equal(x.shape[d], extent, f"original_shape at dimension {d}")
    return _reshaped(low, x, low.dims(new_shape, "new_shape"))


def _reshaped(low: Lowering, x: Node, shape: tuple[Dim, ...]) -> Node:
    if shape.count(-1) > 1:
        raise low.fail("only one entry of the new shape may be -1")
    if -1 in shape:
        rest = product(d for d in shape if d != -1)
        shape = tuple(_left(low, x, rest) if d == -1 else d for d in shape)
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise low.fail(f"the new shape {show(shape)} has a negative size")
    return low.node(low.claim(x.value, shape, x.dtype), x.dtype)


def _left(low: Lowering, x: Node, rest: Dim) -> Dim:
    numel = product(x.shape)
    quotient = exact_div(numel, rest)
    if quotient is not None:
        return quotient
    if isinstance(numel, int) and isinstance(rest, int):
        raise low.fail(f"a tensor of shape {show(x.shape)} has no whole multiple of {rest}")
    low.pin([*x.shape, rest])
    return low.derived(f"({show_dim(numel)}) // max(1, {show_dim(rest)})")


def permute(low: Lowering, arg: Given, dims: Shape | None = None) -> Node:
    """Result dimension k is operand dimension dims[k]."""
    x = low.tensor(arg)
    if dims is None:
        raise low.fail("dims is missing")
    if not isinstance(dims, (list, tuple)) or len(dims) != x.rank:
        raise low.fail(f"dims must be a permutation of the {x.rank} dimensions, not {dims!r}")
    order = tuple(low.axis(d, x.rank, "an entry of dims") for d in dims)
    if len(set(order)) != x.rank:
        raise low.fail(f"dims {list(order)} name a dimension twice")
    return low.node(low.build.permute(x.value, order), x.dtype)


def broadcast(low: Lowering, arg: Given, is_broadcast_dim: Shape) -> Node:
    """A dimension of extent 1 wherever the flag is True."""
    x = low.tensor(arg)
    flags = _flags(low, is_broadcast_dim)
    if flags.count(False) != x.rank:
        raise low.fail(
            f"is_broadcast_dim has {flags.count(False)} entries that are False "
            f"for a tensor of rank {x.rank}"
        )
    extents = iter(x.shape)
    shape = tuple(1 if new else next(extents) for new in flags)
    return low.node(low.build.reshape(x.value, shape), x.dtype)


def broadcast_in_dim(low: Lowering, arg: Given, shape: Shape, broadcast_dims: Shape) -> Node:
    """Operand dimension k becomes dimension broadcast_dims[k] of the shape."""
    item = low.operand(arg)
    if not (isinstance(item, Node) and item.rank):
        item = low.node(low.value_of(item, item.dtype), item.dtype)
    target = low.dims(shape)
    if not isinstance(broadcast_dims, (list, tuple)):
        raise low.fail("broadcast_dims must be a list")
    places = tuple(low.axis(d, len(target), "an entry of broadcast_dims") for d in broadcast_dims)
    if len(places) != item.rank:
        raise low.fail(f"broadcast_dims has {len(places)} entries for a rank of {item.rank}")
    if list(places) != sorted(set(places)):
        raise low.fail(f"broadcast_dims {list(places)} must increase")
    for k, place in enumerate(places):
        if item.shape[k] != 1 and target[place] != -1:
            low.equal(item.shape[k], target[place], f"dimension {k} and the shape at {place}")
    known = tuple(map(low.known, target))
    wide = tuple(
        item.shape[places.index(d)] if e == -1 and d in places else e for d, e in enumerate(known)
    )
    return low.node(_spread_at(low, item, wide, places), item.dtype)


def _spread_at(low: Lowering, x: Node, shape: tuple[Dim, ...], places: tuple[int, ...]) -> Value:
    kept = [k for k in range(x.rank) if x.shape[k] != 1 or shape[places[k]] == 1]
    narrow = low.claim(x.value, tuple(shape[places[k]] for k in kept), x.dtype)
    return low.build.broadcast(narrow, shape, tuple(places[k] for k in kept))


def expand(low: Lowering, arg: Given, shape: Shape) -> Node:
    """Stretch extents of 1; -1 leaves an extent; new dimensions come first."""
    x, target = low.tensor(arg), low.dims(shape)
    ahead = len(target) - x.rank
    if ahead < 0:
        raise low.fail(f"a tensor of rank {x.rank} cannot expand to {len(target)} dimensions")
    wide = tuple(x.shape[d - ahead] if e == -1 and d >= ahead else e for d, e in enumerate(target))
    if -1 in wide:
        raise low.fail("-1 stands at a dimension that the operand does not have")
    for d in range(x.rank):
        if x.shape[d] != 1:
            low.equal(x.shape[d], wide[d + ahead], f"dimension {d} and the shape")
    known = tuple(map(low.known, wide))
    return low.node(_spread_at(low, x, known, tuple(range(ahead, len(known)))), x.dtype)


def squeeze(
    low: Lowering,
    arg: Given,
    dims: Shape,
    *,
    original_shape: Shape | None = None,
    squeeze_expanded: bool = False,
) -> Node:
    """Drop dimensions of extent 1, named or marked with True. Older options change nothing."""
    x = low.tensor(arg)
    if not isinstance(dims, (list, tuple)):
        dims = (low.integer(dims, "dims"),)  # type: ignore[arg-type]  # checked there
    if dims and all(isinstance(d, bool) for d in dims):
        if len(dims) != x.rank:
            raise low.fail(f"{len(dims)} flags for a tensor of rank {x.rank}")
        gone = {k for k, d in enumerate(dims) if d}
    else:
        gone = {low.axis(d, x.rank, "an entry of dims") for d in dims}
    for d in sorted(gone):
        low.equal(x.shape[d], 1, f"dimension {d} is squeezed away")
    shape = tuple(e for d, e in enumerate(x.shape) if d not in gone)
    return low.node(low.build.reshape(x.value, shape), x.dtype)


def slice_(
    low: Lowering,
    arg: Given,
    start_indices: Shape,
    end_indices: Shape,
    strides: Shape | None = None,
    manual_normalization: bool = False,
) -> Node:
    """Elements from start up to end in each dimension; ends beyond the extent stop at it."""
    x = low.tensor(arg)
    starts, ends = low.dims(start_indices, "start_indices"), low.dims(end_indices, "end_indices")
    steps = (1,) * x.rank if strides is None else low.dims(strides, "strides")
    if not len(starts) == len(ends) == len(steps) == x.rank:
        raise low.fail(
            f"{len(starts)} starts, {len(ends)} ends and {len(steps)} strides "
            f"for a tensor of rank {x.rank}"
        )
    value = x.value
    for d, (start, end, step) in enumerate(zip(starts, ends, steps, strict=True)):
        if not isinstance(step, int) or step < 1:
            raise low.fail(f"the stride {step!r} of dimension {d} must be at least 1")
        extent = value.shape[d]
        if isinstance(start, int) and isinstance(end, int) and start > end >= 0:
            raise low.fail(f"dimension {d} starts at {start}, after its end {end}")
        known = all(isinstance(e, int) for e in (start, end, extent))
        if known or (start == 0 and end == extent and step == 1):
            begin, count = _range(start, end, extent, step)
            value = low.build.slice(value, d, begin, count, step)
            continue
        low.pin([start, end, extent])
        text = f"$0, {d}, {show_dim(start)}, {show_dim(end)}, {step}"
        length = _length(low, start, end, extent, step)
        shape = (*value.shape[:d], length, *value.shape[d + 1 :])
        value = low.opaque("aten.slice.Tensor", text, (value,), shape, x.dtype)
    return low.node(value, x.dtype)


def _range(start: Dim, end: Dim, extent: Dim, step: int) -> tuple[int, Dim]:
    """First element and count, as Python's slices."""
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(extent, int)):
        return 0, extent
    found = range(extent)[start:end:step]
    return (found.start, len(found)) if len(found) else (0, 0)


def _length(low: Lowering, start: Dim, end: Dim, extent: Dim, step: int) -> Dim:
    parts = ", ".join(map(show_dim, (start, end)))
    return low.derived(f"len(range({show_dim(extent)})[slice({parts}, {step})])")


def pad(low: Lowering, arg: Given, pad_widths: Shape, value: Given | None = None) -> Node:
    """Widths before and after, from the last dimension to the first; negative ones cut off."""
    x, widths = low.tensor(arg), low.dims(pad_widths, "pad_widths")
    if len(widths) % 2 or len(widths) > 2 * x.rank:
        raise low.fail(f"{len(widths)} widths for a tensor of rank {x.rank}: two a dimension")
    fill = low.operand(0 if value is None else value)
    if any(isinstance(w, SymDim) for w in widths):
        low.pin(widths)
    fixed = [w if isinstance(w, int) else 0 for w in widths]
    low_, high = [0] * x.rank, [0] * x.rank
    for k in range(len(fixed) // 2):
        low_[-1 - k], high[-1 - k] = fixed[2 * k], fixed[2 * k + 1]
    y = x.value
    for d in range(x.rank):
        cut, extent = max(0, -low_[d]), y.shape[d] - max(0, -low_[d]) - max(0, -high[d])
        y = low.build.slice(y, d, cut, extent)
    if not isinstance(fill, Number) or isinstance(fill.value, (complex, SymDim)):
        raise low.fail("the value of a pad must be a real constant")
    constant = operand_of(low, fill, (), x.dtype)
    assert isinstance(constant, Scalar)
    before, after = (tuple(max(0, w) for w in side) for side in (low_, high))
    return low.node(low.build.pad(y, before, after, constant), x.dtype)


def cat(
    low: Lowering, tensors: Sequence[Given], dim: Given = 0, manual_padding: bool = False
) -> Node:
    """Tensors one after the other along a dimension; their other sizes are equal."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise low.fail("it needs a list of tensors")
    parts = [low.tensor(t, f"tensor {k}") for k, t in enumerate(tensors)]
    first = parts[0]
    for p in parts:
        if p.rank != first.rank or not p.rank:
            raise low.fail(f"tensors of ranks {first.rank} and {p.rank} cannot be joined")
    at = low.axis(dim, first.rank)
    for k, p in enumerate(parts[1:], 1):
        for d in range(first.rank):
            if d != at:
                low.equal(first.shape[d], p.shape[d], f"tensors 0 and {k} at dimension {d}")
    dtype = _common(low, parts)
    values = []
    for p in parts:
        shape = tuple(p.shape[d] if d == at else first.shape[d] for d in range(first.rank))
        values.append(low.claim(low.convert(p.value, p.dtype, dtype), shape, dtype))
    if dtype.ir is DType.OTHER:
        total = sum((v.shape[at] for v in values), start=0)
        shape = (*values[0].shape[:at], total, *values[0].shape[at + 1 :])
        text = f"[{', '.join(f'${k}' for k in range(len(values)))}], {at}"
        return low.node(low.opaque("aten.cat.default", text, tuple(values), shape, dtype), dtype)
    joined = low.build.cat(values, at)
    return low.node(low.build.copy(joined) if len(parts) == 1 else joined, dtype)


def _common(low: Lowering, parts: Sequence[Node]) -> DataType:
    """One type stays as it is, also a narrow one; several promote."""
    types = {p.dtype for p in parts}
    return parts[0].dtype if len(types) == 1 else low.promoted(parts)


def size(low: Lowering, arg: Given, dim: Given) -> Number:
    """One extent, as a scalar."""
    x = low.tensor(arg)
    return low.number(x.shape[low.axis(dim, x.rank)], DataType.Int)


def shape(low: Lowering, arg: Given) -> tuple[Item, ...]:
    """All extents, as a vector."""
    return tuple(low.number(e, DataType.Int) for e in low.tensor(arg).shape)


def at(low: Lowering, arg: Lowered, index: Given) -> Item:
    """One entry of a vector."""
    if not isinstance(arg, tuple):
        raise low.fail("only a vector has entries")
    k = low.integer(index, "the index")
    if not -len(arg) <= k < len(arg):
        raise low.fail(f"entry {k} of a vector of {len(arg)}")
    return arg[k]


def stride_order(low: Lowering, arg: Given, stride_order: Shape) -> Node:
    """The same tensor laid out anew; a larger number is a slower dimension."""
    x = low.tensor(arg)
    return relaid(low, x, low.dims(stride_order, "stride_order"))


def relaid(low: Lowering, x: Node, order: Sequence[Dim]) -> Node:
    """A copy with the dimensions in this order in memory."""
    if sorted(o for o in order if isinstance(o, int)) != list(range(x.rank)):
        raise low.fail(f"stride_order {list(order)} is no permutation of 0 to {x.rank - 1}")
    mark = len(low.build.ops)
    copied = low.build.copy(x.value)
    strides = ordered_strides(copied.shape, [o for o in order if isinstance(o, int)])
    laid = replace(copied, strides=strides)
    low.build.rename(mark, {copied: laid})
    return low.node(laid, x.dtype)


def triu(low: Lowering, arg: Given, diagonal: Given = 0) -> Node:
    """The upper triangle of the last two dimensions; zeros elsewhere."""
    x, first = low.tensor(arg), low.integer(diagonal, "diagonal")
    if x.rank < 2:
        raise low.fail(f"a tensor of rank {x.rank} has no triangle")
    if x.dtype.ir is DType.OTHER:
        value = low.opaque("aten.triu.default", f"$0, {first}", (x.value,), x.shape, x.dtype)
        return low.node(value, x.dtype)
    rows, columns = (_positions(low, x, d) for d in (x.rank - 2, x.rank - 1))
    from_diagonal = low.build.emit("sub", (columns, rows), {})
    keep = low.build.emit("ge", (from_diagonal, Scalar(first)), {})
    zero = operand_of(low, Number(0, DataType.Int), (), x.dtype)
    return low.node(low.build.emit("where", (keep, x.value, zero), {}), x.dtype)


def _positions(low: Lowering, x: Node, dim: int) -> Value:
    """Along one dimension 0, 1, 2 ..."""
    shape = (x.shape[dim],)
    attrs: dict[str, Attr] = {"start": 0, "step": 1, "shape": shape, "dtype": DType.I64}
    return low.build.broadcast(low.build.emit("iota", (), attrs), x.shape, (dim,))


def _flags(low: Lowering, given: Shape) -> list[bool]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(f, bool) for f in given):
        raise low.fail("is_broadcast_dim must be a list of bools")
    return [bool(f) for f in given]


SHAPE: dict[str, Rule] = {
    "reshape": reshape,
    "view": view,
    "permute": permute,
    "broadcast": broadcast,
    "broadcast_in_dim": broadcast_in_dim,
    "expand": expand,
    "squeeze": squeeze,
    "slice": slice_,
    "pad": pad,
    "cat": cat,
    "size": size,
    "shape": shape,
    "tensor_sizes": shape,
    "at": at,
    "stride_order": stride_order,
    "triu": triu,
}
