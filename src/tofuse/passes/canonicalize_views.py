"""Brings chains of views to one view, and drops those that change nothing."""

from __future__ import annotations

from tofuse.ir.dims import Dim
from tofuse.ir.graph import Attr, Graph, Op, Value
from tofuse.passes.rewrite import Rewrite, Rule, Sweep, rewrite


def canonicalize_views(graph: Graph) -> Graph:
    """Compose reshapes, permutes, slices and broadcasts with those they read.

    Again where that changes something: what a caller sees no more may become another view.
    """
    while (after := rewrite(graph, RULES)) is not graph:
        graph = after
    return graph


def same_shape(op: Op, sweep: Sweep) -> Rewrite | None:
    """A reshape to the shape there is already is nothing."""
    return sweep.instead(op, op.operands[0])


def reshape_twice(op: Op, sweep: Sweep) -> Rewrite | None:
    """reshape(reshape(x, s), t) = reshape(x, t)"""
    inner = sweep.define(op.operands[0], "reshape")
    return _become(op, "reshape", inner.inputs[0], shape=op.result.shape) if inner else None


def permute_nothing(op: Op, sweep: Sweep) -> Rewrite | None:
    """permute(x, (0, 1, ...)) = x"""
    dims = op.ints("dims")
    return sweep.instead(op, op.operands[0]) if dims == tuple(range(len(dims))) else None


def permute_twice(op: Op, sweep: Sweep) -> Rewrite | None:
    """permute(permute(x, p), q) = permute(x, p[q])"""
    inner = sweep.define(op.operands[0], "permute")
    if inner is None:
        return None
    first = inner.ints("dims")
    return _become(op, "permute", inner.inputs[0], dims=tuple(first[d] for d in op.ints("dims")))


def permute_of_ones(op: Op, sweep: Sweep) -> Rewrite | None:
    """A permute that keeps the order of all dimensions larger than 1 is a reshape."""
    x = op.inputs[0]
    moved = [d for d in op.ints("dims") if x.shape[d] != 1]
    if moved != sorted(moved):
        return None
    return _become(op, "reshape", x, shape=op.result.shape)


def slice_whole(op: Op, sweep: Sweep) -> Rewrite | None:
    """A slice of everything, forwards, is nothing."""
    if any(op.dims("start")) or any(s != 1 for s in op.ints("step")):
        return None
    return sweep.instead(op, op.operands[0])


def slice_twice(op: Op, sweep: Sweep) -> Rewrite | None:
    """slice(slice(x, s1, t1), s2, t2) = slice(x, s1 + s2 * t1, t1 * t2)"""
    inner = sweep.define(op.operands[0], "slice")
    if inner is None:
        return None
    outer = tuple(zip(op.dims("start"), op.ints("step"), strict=True))
    first = tuple(zip(inner.dims("start"), inner.ints("step"), strict=True))
    start = tuple(s2 * t1 + s1 for (s1, t1), (s2, _) in zip(first, outer, strict=True))
    step = tuple(t1 * t2 for (_, t1), (_, t2) in zip(first, outer, strict=True))
    return _slice(op, inner.inputs[0], start, step)


def slice_of_cat(op: Op, sweep: Sweep) -> Rewrite | None:
    """A slice that is one whole operand of a cat is that operand, if nobody sees both."""
    cat = sweep.define(op.operands[0], "cat")
    if cat is None or any(s != 1 for s in op.ints("step")) or sweep.is_shown_besides(op.result):
        return None
    dim, start = cat.int("dim"), op.dims("start")
    at: Dim = 0
    for piece in cat.inputs:
        if at == start[dim]:
            whole = not any(s for k, s in enumerate(start) if k != dim)
            fits = whole and (sweep.is_private(op.result) or _lie_alike(piece, cat.result))
            return sweep.instead(op, piece, copied=True) if fits else None
        at = piece.shape[dim] + at
    return None


def slice_within_cat(op: Op, sweep: Sweep) -> Rewrite | None:
    """A slice of some of one operand of a cat is a slice of that operand, if nobody sees that."""
    cat, shape = sweep.define(op.operands[0], "cat"), op.result.shape
    if cat is None or not sweep.is_private(op.result):
        return None
    dim, start, step, at = cat.int("dim"), op.dims("start"), op.ints("step"), 0
    for piece in cat.inputs:
        width, count, first = piece.shape[dim], shape[dim], start[dim]
        if not (isinstance(width, int) and isinstance(count, int) and isinstance(first, int)):
            return None
        begin = first - at
        ends = begin, begin + (count - 1) * step[dim]
        if min(ends) >= 0 and max(ends) < width:
            return _slice(op, piece, (*start[:dim], begin, *start[dim + 1 :]), step)
        at += width
    return None


def slice_within_pad(op: Op, sweep: Sweep) -> Rewrite | None:
    """A slice of what is padded, without the padding, is a slice of that, if nobody sees it.

    Not where others read the padding: each of the two would then run over loops of its own.
    """
    pad = sweep.define(op.operands[0], "pad")
    if pad is None or not sweep.is_private(op.result):
        return None
    if not all(_is_within(reader, pad) for reader in sweep.readers(pad.result)):
        return None
    start = tuple(a - b for a, b in zip(op.dims("start"), pad.dims("low"), strict=True))
    return _slice(op, pad.inputs[0], start, op.ints("step"))


def slice_of_broadcast(op: Op, sweep: Sweep) -> Rewrite | None:
    """slice(broadcast(x)) = broadcast(slice(x)): along new dimensions all slices are the same"""
    inner = sweep.define(op.operands[0], "broadcast")
    if inner is None:
        return None
    (x,), dims, shape = inner.inputs, inner.ints("dims"), op.result.shape
    part = sweep.make(
        "slice",
        (x,),
        like=op,
        start=tuple(op.dims("start")[d] for d in dims),
        step=tuple(op.ints("step")[d] for d in dims),
        shape=tuple(shape[d] for d in dims),
        dtype=x.dtype,
    )
    return part, *_become(op, "broadcast", part.result, shape=shape, dims=dims)


def broadcast_nothing(op: Op, sweep: Sweep) -> Rewrite | None:
    """A broadcast that adds no dimension is nothing."""
    return sweep.instead(op, op.operands[0])


def broadcast_twice(op: Op, sweep: Sweep) -> Rewrite | None:
    """broadcast(broadcast(x, p), q) = broadcast(x, q[p])"""
    inner = sweep.define(op.operands[0], "broadcast")
    if inner is None:
        return None
    outer = op.ints("dims")
    dims = tuple(outer[d] for d in inner.ints("dims"))
    return _become(op, "broadcast", inner.inputs[0], shape=op.result.shape, dims=dims)


def permute_of_broadcast(op: Op, sweep: Sweep) -> Rewrite | None:
    """permute(broadcast(x, dims), p) = broadcast(x, p^-1[dims]), where those are still in order"""
    inner = sweep.define(op.operands[0], "broadcast")
    if inner is None:
        return None
    place = {d: k for k, d in enumerate(op.ints("dims"))}
    dims = tuple(place[d] for d in inner.ints("dims"))
    if list(dims) != sorted(dims):
        return None
    return _become(op, "broadcast", inner.inputs[0], shape=op.result.shape, dims=dims)


def cat_of_one(op: Op, sweep: Sweep) -> Rewrite | None:
    """cat([x]) = x"""
    return sweep.instead(op, op.operands[0]) if len(op.operands) == 1 else None


def cat_of_the_same(op: Op, sweep: Sweep) -> Rewrite | None:
    """cat([x, x, ...]) = broadcast(x) along a dimension of 1, if nobody sees the copy"""
    x, dim = op.inputs[0], op.int("dim")
    if len(set(op.inputs)) > 1 or x.shape[dim] != 1 or not sweep.is_private(op.result):
        return None
    rest = sweep.make("reshape", (x,), like=op, shape=(*x.shape[:dim], *x.shape[dim + 1 :]))
    dims = tuple(d for d in range(len(x.shape)) if d != dim)
    return rest, *_become(op, "broadcast", rest.result, shape=op.result.shape, dims=dims)


def cat_of_slices(op: Op, sweep: Sweep) -> Rewrite | None:
    """A cat of slices that follow one another in one value is one slice, if nobody sees the copy"""
    first, dim = sweep.define(op.operands[0], "slice"), op.int("dim")
    if first is None or not sweep.is_private(op.result):
        return None
    start, step = first.dims("start"), first.ints("step")
    end = start[dim]
    for x in op.operands:
        piece = sweep.define(x, "slice")
        if piece is None or piece.inputs[0] is not first.inputs[0] or step[dim] != 1:
            return None
        here = piece.dims("start")
        if here[dim] != end or piece.ints("step") != step or not _same_but(dim, here, start):
            return None
        end = piece.result.shape[dim] + end
    return _slice(op, first.inputs[0], start, step)


def pad_nothing(op: Op, sweep: Sweep) -> Rewrite | None:
    """A pad by nothing is nothing."""
    return sweep.instead(op, op.operands[0])


def _become(op: Op, kind: str, x: Value, **attrs: Attr) -> tuple[Op, ...]:
    return (Op(kind, (x,), op.results, tuple(attrs.items()), op.loc),)


def _slice(op: Op, x: Value, start: tuple[Dim, ...], step: tuple[int, ...]) -> tuple[Op, ...]:
    shape, dtype = op.result.shape, op.result.dtype
    return _become(op, "slice", x, start=start, step=step, shape=shape, dtype=dtype)


def _lie_alike(a: Value, b: Value) -> bool:
    """Whether a step along any dimension of one value is as far in memory as in the other."""
    places = zip(a.shape, a.layout, b.layout, strict=True)
    return all(n == 1 or x == y for n, x, y in places)


def _is_within(op: Op, pad: Op) -> bool:
    """Whether an op takes a part of what is padded that has none of the padding."""
    if op.kind != "slice":
        return False
    columns = pad.inputs[0].shape, op.result.shape, op.dims("start"), op.ints("step")
    for width, count, start, step, low in zip(*columns, pad.dims("low"), strict=True):
        begin = start - low
        if (begin, step) == (0, 1) and count == width:
            continue
        if not (isinstance(width, int) and isinstance(count, int) and isinstance(begin, int)):
            return False
        ends = begin, begin + (count - 1) * step
        if min(ends) < 0 or max(ends) >= width:
            return False
    return True


def _same_but(dim: int, a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return a[:dim] + a[dim + 1 :] == b[:dim] + b[dim + 1 :]


SLICES: tuple[Rule, ...] = (
    *(slice_whole, slice_twice, slice_of_broadcast),
    *(slice_of_cat, slice_within_cat, slice_within_pad),
)
RULES: dict[str, tuple[Rule, ...]] = {
    "reshape": (same_shape, reshape_twice),
    "permute": (permute_nothing, permute_twice, permute_of_ones, permute_of_broadcast),
    "slice": SLICES,
    "broadcast": (broadcast_nothing, broadcast_twice),
    "cat": (cat_of_one, cat_of_the_same, cat_of_slices),
    "pad": (pad_nothing,),
}
