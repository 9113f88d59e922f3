"""Graph -> Graph: copy a view that no strides express, where a whole tensor of it is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tofuse.analysis.alias import dense_strides, is_view, view_storage
from tofuse.fusion.lower.align import align
from tofuse.fusion.lower.axes import Misaligned
from tofuse.ir.dims import contiguous_strides, hint
from tofuse.ir.graph import Graph, Names, Op, Value, substitute
from tofuse.ir.region import Strided, is_placed, lends
from tofuse.ops.result_types import make_op
from tofuse.ops.table import Pattern, opdef

Fine = Callable[[Value, dict[Value, Strided]], bool]


def materialise(graph: Graph, storage: dict[Value, Strided]) -> Graph:
    """Operands of library calls and outputs of the graph are real tensors after this.

    Outputs have the strides they were captured with; pieces of a cat lie in memory, and so does
    what a slice takes a part of, where no loops run over that part.
    """
    storage = dict(storage)
    ops: list[Op] = []
    copies: dict[Value, Value] = {}
    names = Names(graph)
    makers = graph.producers()

    def real(v: Value | None, fine: Fine) -> Value | None:
        if v is None or fine(v, storage):
            return v
        if v not in copies:
            name = names.fresh(f"{v.name}_copy")
            copy = make_op("convert", (v,), {"dtype": v.dtype}, name=name, like=makers.get(v))
            ops.append(replace(copy, results=(replace(copy.result, strides=v.strides),)))
            copies[v] = ops[-1].result
            storage[copies[v]] = Strided(copies[v], 0, dense_strides(copies[v]))
        return copies[v]

    for op in graph.ops:
        fine = None if is_placed(op) else NEEDS.get(opdef(op.kind).pattern)
        if op.kind == "slice" and not _has_loops(op, makers, storage):
            fine = _strided  # its operand becomes a tensor
        if fine is not None:
            fine = _as_captured if lends(op) else fine
            wants = [_by_rows if k in _added(op, storage) else fine for k in range(len(op.inputs))]
            pairs = zip(op.inputs, wants, strict=True)
            moved = {v: r for v, want in pairs if (r := real(v, want)) is not None and r is not v}
            op = replace(op, operands=substitute(op.operands, moved)) if moved else op
        if is_view(op) and op.result not in storage and op.inputs[0] in storage:
            place = view_storage(op, storage[op.inputs[0]])
            storage |= {} if place is None else {op.result: place}
        ops.append(op)
    made = {v for v, op in makers.items() if op.kind != "opaque"}
    outputs = tuple(real(v, lambda v, s: _returnable(v, s, made)) for v in graph.outputs)
    return graph if tuple(ops) == graph.ops else replace(graph, ops=tuple(ops), outputs=outputs)


def _has_loops(op: Op, makers: Mapping[Value, Op], storage: Mapping[Value, Strided]) -> bool:
    """Whether a view of memory has axes of its own: a slice of merged dimensions has none."""
    views = [op]
    while (v := views[-1].inputs[0]) not in storage and v in makers:
        views.append(makers[v])
    try:
        align(views[::-1], storage)
    except Misaligned:
        return False
    return True


def _strided(v: Value, storage: dict[Value, Strided]) -> bool:
    """Whether strides express it."""
    return v in storage


def _expressible(v: Value, storage: dict[Value, Strided]) -> bool:
    """Whether torch has a view for it: there are no negative strides in torch."""
    return v in storage and all(hint(s) >= 0 for s in storage[v].strides)


def _by_rows(v: Value, storage: dict[Value, Strided]) -> bool:
    """Whether it lies by rows, without gaps."""
    if v not in storage:
        return False
    pairs = zip(v.shape, storage[v].strides, contiguous_strides(v.shape), strict=True)
    return all(a == b or n == 1 for n, a, b in pairs)


def _as_captured(v: Value, storage: dict[Value, Strided]) -> bool:
    """Whether it lies as PyTorch would have it: an operator that looks at memory asks for that."""
    if not _expressible(v, storage):
        return False
    triples = zip(v.shape, storage[v].strides, v.layout, strict=True)
    return all(extent == 1 or a == b for extent, a, b in triples)


def _added(op: Op, storage: Mapping[Value, Strided]) -> tuple[int, ...]:
    """The inputs of a library call whose rows it adds one by one, by a loop of its own for each
    where they have gaps: ten times as slow as if they are copied before."""
    target = op.attr("target") if op.kind == "opaque" else ""
    if target == "aten.index_add.default":
        return (2,)
    if target == "aten.scatter_add.default" and op.inputs[1] in storage:
        return (2,) if 0 in storage[op.inputs[1]].strides else ()
    return ()


def _returnable(v: Value, storage: dict[Value, Strided], made: Collection[Value]) -> bool:
    """Whether it may go to the caller: no elements repeat (stride 0) that eager has apart.

    What eager has without gaps lies in the same order, but in memory that is not ours to lay out.
    """
    if not _expressible(v, storage):
        return False
    strides = storage[v].strides
    places = list(zip(v.shape, v.layout, strides, strict=True))
    if any(extent != 1 and there == 0 != seen for extent, seen, there in places):
        return False
    if v.layout != dense_strides(v) or storage[v].root not in made:
        return True
    return all(extent == 1 or seen == there for extent, seen, there in places)


NEEDS: dict[Pattern, Fine] = {
    Pattern.OPAQUE: _expressible,
    Pattern.TAKE: _expressible,
    Pattern.RANDOM: _expressible,
    Pattern.JOIN: _strided,
}
