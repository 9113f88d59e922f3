"""Where values lie: views that only relabel memory become an offset and strides, never a kernel."""

from __future__ import annotations

from collections.abc import Mapping

from tofuse.ir.dims import Dim, contiguous_strides, exact_div, hint, product, strides_in
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.region import Strided, is_placed
from tofuse.ops.table import Pattern, opdef


def storages(graph: Graph) -> dict[Value, Strided]:
    """Every value's place, for values that own memory or are a strided view of one that does.

    A view that merges dimensions which do not follow each other in memory is not in the answer.
    """
    found = {v: Strided(v, 0, v.layout) for v in graph.inputs}
    homes = placements(graph)
    for op in graph.ops:
        if not is_view(op):
            for r in op.results:
                strides = r.layout if op.kind == "opaque" else dense_strides(r)
                found[r] = Strided(r, 0, homes[r].strides if r in homes else strides)
        elif (source := found.get(op.inputs[0])) is not None:
            place = view_storage(op, source)
            if place is not None:
                found[op.result] = place
    return found


def placements(graph: Graph) -> dict[Value, Strided]:
    """Tensors that own no memory, but are written into a part of a cat's: which part that is."""
    found: dict[Value, Strided] = {}
    makers = graph.producers() if any(map(is_placed, graph.ops)) else {}
    for cat in filter(is_placed, graph.ops):
        at: Dim = 0
        for piece in cat.inputs:
            root, strides, offset = piece_place(piece, cat, at, makers)
            assert root not in found, f"{root.name} cannot lie in two cats"
            found[root] = Strided(cat.results[0], offset, strides)
            at = at + piece.shape[cat.int("dim")]
    return found


def piece_place(
    piece: Value, cat: Op, at: Dim, makers: Mapping[Value, Op]
) -> tuple[Value, tuple[Dim, ...], Dim]:
    """The tensor that a piece of a cat is a view of, and the strides and the offset that it has
    where the piece lies in the cat, `at` so far along; a view that has gaps itself ends there."""
    whole = cat.results[0].layout
    v, strides = piece, whole
    while v in makers and is_view(makers[v]):
        before = _strides_before(makers[v], strides)
        if before is None:
            break
        v, strides = makers[v].inputs[0], before
    return v, strides, product((at, whole[cat.int("dim")]))


def _strides_before(view: Op, strides: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """The strides of what is viewed, so that the view has these; of a view that moves dimensions
    or has more or fewer of one element."""
    shape = view.inputs[0].shape
    if view.kind == "permute":
        found = dict(zip(view.ints("dims"), strides, strict=True))
        return tuple(found[d] for d in range(len(shape)))
    long = [s for s, extent in zip(strides, view.result.shape, strict=True) if extent != 1]
    extents = tuple(d for d in view.result.shape if d != 1)
    if view.kind != "reshape" or extents != tuple(d for d in shape if d != 1):
        return None
    result: list[Dim] = []
    outer: Dim = 1  # the stride of a dimension of one element here
    for extent in reversed(shape):
        result.append(outer if extent == 1 else long.pop())
        outer = product((result[-1], extent))
    return tuple(reversed(result))


def is_view(op: Op) -> bool:
    """Whether the op only relabels elements."""
    return opdef(op.kind).pattern in (Pattern.VIEW, Pattern.BROADCAST)


def dense_strides(value: Value) -> tuple[Dim, ...]:
    """The strides capture saw if they leave no gaps, else dense ones in the same order."""
    shape = value.shape
    plain = contiguous_strides(shape)
    if value.strides is None or value.strides == plain:
        return plain
    order = sorted(range(len(shape)), key=lambda k: (-hint(value.layout[k]), k))
    return strides_in(order, shape)


def view_storage(op: Op, source: Strided) -> Strided | None:
    """The strides of a view of `source`; None where no strides express it."""
    shape = op.inputs[0].shape
    match op.kind:
        case "permute":
            strides: tuple[Dim, ...] | None = tuple(source.strides[d] for d in op.ints("dims"))
            offset = source.offset
        case "broadcast":
            dims = op.ints("dims")
            strides = tuple(
                source.strides[dims.index(k)] if k in dims else 0
                for k in range(len(op.result.shape))
            )
            offset = source.offset
        case "slice":
            starts, steps = op.dims("start"), op.ints("step")
            strides = tuple(product((s, t)) for s, t in zip(source.strides, steps, strict=True))
            moves = [product((a, s)) for a, s in zip(starts, source.strides, strict=True)]
            offset = sum(moves, source.offset)
        case _:
            strides, offset = reshape_strides(shape, source.strides, op.result.shape), source.offset
    return None if strides is None else Strided(source.root, offset, strides)


def reshape_strides(
    shape: tuple[Dim, ...], strides: tuple[Dim, ...], new: tuple[Dim, ...]
) -> tuple[Dim, ...] | None:
    """Strides of a reshape that moves nothing, as torch's `view` finds them, or None."""
    if any(d == 0 for d in shape):
        return contiguous_strides(new)
    chunks: list[tuple[Dim, Dim]] = []  # (elements, stride of the innermost), outermost first
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if chunks and chunks[-1][1] == product((extent, stride)):
            chunks[-1] = (product((chunks[-1][0], extent)), stride)
        else:
            chunks.append((extent, stride))
    result: list[Dim] = []
    rest, step = chunks.pop() if chunks else (1, 1)
    for extent in reversed(new):
        if extent == 1:
            result.append(step)
            continue
        if rest == 1 and chunks:
            rest, step = chunks.pop()
        quotient = exact_div(rest, extent)
        if quotient is None:
            return None
        result.append(step)
        rest, step = quotient, product((step, extent))
    if rest != 1 or chunks:
        return None
    return tuple(reversed(result))
