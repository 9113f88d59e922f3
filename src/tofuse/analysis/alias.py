"""Alias analysis: the memory of each value as a root value, an offset and strides."""

from __future__ import annotations

from collections.abc import Mapping

from tofuse.ir.dims import Dim, contiguous_strides, exact_div, product, size_hint, strides_in
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.region import MemRef, is_eliminated_concat
from tofuse.ops.table import Pattern, opdef


def memrefs_of(graph: Graph) -> dict[Value, MemRef]:
    """Return the memory reference of every value that owns memory or is a strided view of one.

    A view that merges dimensions which are not contiguous in memory has no entry.
    """
    memrefs = {v: MemRef(v, 0, v.layout) for v in graph.inputs}
    slices = concat_slices(graph)
    for op in graph.ops:
        if not is_view(op):
            for r in op.results:
                strides = r.layout if op.kind == "opaque" else dense_strides(r)
                memrefs[r] = MemRef(r, 0, slices[r].strides if r in slices else strides)
        elif (source := memrefs.get(op.inputs[0])) is not None:
            memref = view_memref(op, source)
            if memref is not None:
                memrefs[op.result] = memref
    return memrefs


def concat_slices(graph: Graph) -> dict[Value, MemRef]:
    """Return the slice of an eliminated concat for each tensor that is written into one."""
    slices: dict[Value, MemRef] = {}
    producers = graph.producers() if any(map(is_eliminated_concat, graph.ops)) else {}
    for concat in filter(is_eliminated_concat, graph.ops):
        start: Dim = 0
        for operand in concat.inputs:
            root, strides, offset = operand_slice(operand, concat, start, producers)
            assert root not in slices, f"{root.name} is an operand of two eliminated concats"
            slices[root] = MemRef(concat.results[0], offset, strides)
            start = start + operand.shape[concat.int("dim")]
    return slices


def operand_slice(
    operand: Value, concat: Op, start: Dim, producers: Mapping[Value, Op]
) -> tuple[Value, tuple[Dim, ...], Dim]:
    """Return the tensor behind an operand of a concat, with its strides and offset in the result.

    `start` is the operand's first index along the concat's dimension. Permutations and reshapes
    that add or drop dimensions of one element are followed to the tensor that they view.
    """
    layout = concat.results[0].layout
    v, strides = operand, layout
    while v in producers and is_view(producers[v]):
        operand_strides = _operand_strides(producers[v], strides)
        if operand_strides is None:
            break
        v, strides = producers[v].inputs[0], operand_strides
    return v, strides, product((start, layout[concat.int("dim")]))


def _operand_strides(view: Op, strides: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """Return the strides of a view's operand for which the view has `strides`.

    None unless the view permutes dimensions, or adds or drops dimensions of one element.
    """
    shape = view.inputs[0].shape
    if view.kind == "permute":
        by_dim = dict(zip(view.ints("dims"), strides, strict=True))
        return tuple(by_dim[d] for d in range(len(shape)))
    long = [s for s, extent in zip(strides, view.result.shape, strict=True) if extent != 1]
    extents = tuple(d for d in view.result.shape if d != 1)
    if view.kind != "reshape" or extents != tuple(d for d in shape if d != 1):
        return None
    result: list[Dim] = []
    outer: Dim = 1  # the stride of a dimension of one element
    for extent in reversed(shape):
        result.append(outer if extent == 1 else long.pop())
        outer = product((result[-1], extent))
    return tuple(reversed(result))


def is_view(op: Op) -> bool:
    """Whether an op of the graph IR is a view: it reads no elements."""
    return opdef(op.kind).pattern in (Pattern.VIEW, Pattern.BROADCAST)


def dense_strides(value: Value) -> tuple[Dim, ...]:
    """Return dense strides in the order of the captured ones (equal to them if they are dense)."""
    shape = value.shape
    row_major = contiguous_strides(shape)
    if value.strides is None or value.strides == row_major:
        return row_major
    order = sorted(range(len(shape)), key=lambda k: (-size_hint(value.layout[k]), k))
    return strides_in(order, shape)


def view_memref(op: Op, source: MemRef) -> MemRef | None:
    """Return the memory reference of a view of `source`; None if no strides express the view."""
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
            offsets = [product((a, s)) for a, s in zip(starts, source.strides, strict=True)]
            offset = sum(offsets, source.offset)
        case _:
            strides, offset = reshape_strides(shape, source.strides, op.result.shape), source.offset
    return None if strides is None else MemRef(source.root, offset, strides)


def reshape_strides(
    shape: tuple[Dim, ...], strides: tuple[Dim, ...], new: tuple[Dim, ...]
) -> tuple[Dim, ...] | None:
    """Return the strides of a reshape without a copy, as `Tensor.view` does; None if it copies."""
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
