"""Compose chains of views into one view and remove identity views."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from tofuse.ir.dims import Dim, equal_strides
from tofuse.ir.graph import Graph, Op, Value
from tofuse.passes.rewrite import Replacement, Rewriter, RewriteRule, identity, redefine, rewrite


def canonicalize_views(graph: Graph) -> Graph:
    """Compose reshapes, permutes, slices and broadcasts with the views they read.

    Repeat until nothing changes: a value that no longer escapes may become another view.
    """
    while (after := rewrite(graph, RULES)) is not graph:
        graph = after
    return graph


def reshape_of_reshape(op: Op, rewriter: Rewriter) -> Replacement | None:
    """reshape(reshape(x, s), t) = reshape(x, t)"""
    inner = rewriter.defining_op(op.operands[0], "reshape")
    return redefine(op, "reshape", inner.inputs[0], shape=op.result.shape) if inner else None


def permute_of_permute(op: Op, rewriter: Rewriter) -> Replacement | None:
    """permute(permute(x, p), q) = permute(x, p[q])"""
    inner = rewriter.defining_op(op.operands[0], "permute")
    if inner is None:
        return None
    first = inner.ints("dims")
    dims = tuple(first[d] for d in op.ints("dims"))
    return redefine(op, "permute", inner.inputs[0], dims=dims)


def permute_of_unit_dims(op: Op, rewriter: Rewriter) -> Replacement | None:
    """permute(x, p) = reshape(x), if p keeps the order of all dimensions larger than 1"""
    x = op.inputs[0]
    moved = [d for d in op.ints("dims") if x.shape[d] != 1]
    if moved != sorted(moved):
        return None
    return redefine(op, "reshape", x, shape=op.result.shape)


def identity_slice(op: Op, rewriter: Rewriter) -> Replacement | None:
    """slice(x) = x, if it starts at 0 with step 1 and keeps the shape"""
    if any(op.dims("start")) or any(s != 1 for s in op.ints("step")):
        return None
    return rewriter.legal_replacement(op, op.operands[0])


def slice_of_slice(op: Op, rewriter: Rewriter) -> Replacement | None:
    """slice(slice(x, s1, t1), s2, t2) = slice(x, s1 + s2 * t1, t1 * t2)"""
    inner = rewriter.defining_op(op.operands[0], "slice")
    if inner is None:
        return None
    outer = tuple(zip(op.dims("start"), op.ints("step"), strict=True))
    first = tuple(zip(inner.dims("start"), inner.ints("step"), strict=True))
    start = tuple(s2 * t1 + s1 for (s1, t1), (s2, _) in zip(first, outer, strict=True))
    step = tuple(t1 * t2 for (_, t1), (_, t2) in zip(first, outer, strict=True))
    return _replace_with_slice(op, inner.inputs[0], start, step)


def whole_cat_operand(op: Op, rewriter: Rewriter) -> Replacement | None:
    """slice(cat(..., x, ...)) = x, if the slice is x and overlaps no other output"""
    cat = rewriter.defining_op(op.operands[0], "cat")
    if cat is None or any(s != 1 for s in op.ints("step")):
        return None
    dim, start = cat.int("dim"), op.dims("start")
    x = next((x for x, at in _operand_starts(cat) if at == start[dim]), None)
    if x is None or any(s for k, s in enumerate(start) if k != dim):
        return None
    same_strides = equal_strides(x.layout, cat.result.layout, x.shape)
    if not (same_strides or rewriter.is_private(op.result)):
        return None
    if rewriter.overlaps_other_output(op.result):
        return None
    return rewriter.legal_replacement(op, x, eager_copies=True)


def slice_of_cat_operand(op: Op, rewriter: Rewriter) -> Replacement | None:
    """slice(cat(..., x, ...)) = slice(x), if the slice lies within x and the result is private"""
    cat, shape = rewriter.defining_op(op.operands[0], "cat"), op.result.shape
    if cat is None or not rewriter.is_private(op.result):
        return None
    dim, start, step = cat.int("dim"), op.dims("start"), op.ints("step")
    for x, at in _operand_starts(cat):
        begin = start[dim] - at
        if _lies_within(x.shape[dim], begin, shape[dim], step[dim]):
            return _replace_with_slice(op, x, (*start[:dim], begin, *start[dim + 1 :]), step)
    return None


def slice_without_padding(op: Op, rewriter: Rewriter) -> Replacement | None:
    """slice(pad(x)) = slice(x), if the slice has no padding and the result is private

    All users of pad(x) must be such slices. Otherwise pad(x) stays, and the two values would get
    separate loops.
    """
    pad = rewriter.defining_op(op.operands[0], "pad")
    if pad is None or not rewriter.is_private(op.result):
        return None
    if not all(_reads_no_padding(user, pad) for user in rewriter.users.get(pad.result, ())):
        return None
    start = tuple(a - b for a, b in zip(op.dims("start"), pad.dims("low"), strict=True))
    return _replace_with_slice(op, pad.inputs[0], start, op.ints("step"))


def slice_of_broadcast(op: Op, rewriter: Rewriter) -> Replacement | None:
    """slice(broadcast(x)) = broadcast(slice(x)); the slice ignores the broadcast dimensions"""
    inner = rewriter.defining_op(op.operands[0], "broadcast")
    if inner is None:
        return None
    (x,), dims, shape = inner.inputs, inner.ints("dims"), op.result.shape
    part = rewriter.make_op(
        "slice",
        (x,),
        like=op,
        start=tuple(op.dims("start")[d] for d in dims),
        step=tuple(op.ints("step")[d] for d in dims),
        shape=tuple(shape[d] for d in dims),
        dtype=x.dtype,
    )
    return part, *redefine(op, "broadcast", part.result, shape=shape, dims=dims)


def view_of_broadcast(op: Op, rewriter: Rewriter) -> Replacement | None:
    """broadcast(broadcast(x, p), q) = broadcast(x, q[p])

    permute(broadcast(x, p), q) = broadcast(x, q^-1[p]), if q^-1[p] is increasing
    """
    inner, outer = rewriter.defining_op(op.operands[0], "broadcast"), op.ints("dims")
    if inner is None:
        return None
    place = outer.__getitem__ if op.kind == "broadcast" else outer.index
    dims = tuple(map(place, inner.ints("dims")))
    if list(dims) != sorted(dims):
        return None
    return redefine(op, "broadcast", inner.inputs[0], shape=op.result.shape, dims=dims)


def cat_of_equal_operands(op: Op, rewriter: Rewriter) -> Replacement | None:
    """cat([x, x, ...]) = broadcast(x), if x has extent 1 along dim and the result is private"""
    x, dim = op.inputs[0], op.int("dim")
    if len(set(op.inputs)) > 1 or x.shape[dim] != 1 or not rewriter.is_private(op.result):
        return None
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    squeezed = rewriter.make_op("reshape", (x,), like=op, shape=shape)
    dims = tuple(d for d in range(len(x.shape)) if d != dim)
    new = redefine(op, "broadcast", squeezed.result, shape=op.result.shape, dims=dims)
    return squeezed, *new


def cat_of_adjacent_slices(op: Op, rewriter: Rewriter) -> Replacement | None:
    """cat(slice(x), slice(x), ...) = slice(x), if they are adjacent and the result is private"""
    first, dim = rewriter.defining_op(op.operands[0], "slice"), op.int("dim")
    if first is None or not rewriter.is_private(op.result):
        return None
    start, step = first.dims("start"), first.ints("step")
    end = start[dim]
    for x in op.operands:
        operand = rewriter.defining_op(x, "slice")
        if operand is None or operand.inputs[0] is not first.inputs[0] or step[dim] != 1:
            return None
        here = operand.dims("start")
        if here[dim] != end or operand.ints("step") != step or not _equal_except(dim, here, start):
            return None
        end = operand.result.shape[dim] + end
    return _replace_with_slice(op, first.inputs[0], start, step)


def _replace_with_slice(
    op: Op, x: Value, start: tuple[Dim, ...], step: tuple[int, ...]
) -> tuple[Op, ...]:
    shape, dtype = op.result.shape, op.result.dtype
    return redefine(op, "slice", x, start=start, step=step, shape=shape, dtype=dtype)


def _operand_starts(cat: Op) -> Iterator[tuple[Value, Dim]]:
    """Return the operands of a concat, each with its first index along the concat's dimension."""
    extents = (x.shape[cat.int("dim")] for x in cat.inputs)
    return zip(cat.inputs, accumulate(extents, initial=0), strict=False)


def _reads_no_padding(op: Op, pad: Op) -> bool:
    """Whether an op is a slice of a pad's result without any padding."""
    if op.kind != "slice":
        return False
    columns = pad.inputs[0].shape, op.result.shape, op.dims("start"), op.ints("step")
    return all(
        ((start - low, step) == (0, 1) and count == width)
        or _lies_within(width, start - low, count, step)
        for width, count, start, step, low in zip(*columns, pad.dims("low"), strict=True)
    )


def _lies_within(width: Dim, start: Dim, count: Dim, step: int) -> bool:
    """Whether the elements of a slice are known to be among `width` elements."""
    if not (isinstance(width, int) and isinstance(start, int) and isinstance(count, int)):
        return False
    ends = start, start + (count - 1) * step
    return min(ends) >= 0 and max(ends) < width


def _equal_except(dim: int, a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return a[:dim] + a[dim + 1 :] == b[:dim] + b[dim + 1 :]


RULES: dict[str, tuple[RewriteRule, ...]] = {
    "reshape": (identity, reshape_of_reshape),
    "permute": (permute_of_permute, permute_of_unit_dims, view_of_broadcast),
    "slice": (
        *(identity_slice, slice_of_slice, slice_of_broadcast),
        *(whole_cat_operand, slice_of_cat_operand, slice_without_padding),
    ),
    "broadcast": (identity, view_of_broadcast),
    "cat": (identity, cat_of_equal_operands, cat_of_adjacent_slices),
    "pad": (identity,),
}
