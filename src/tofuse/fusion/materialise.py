"""Graph -> Graph: copy a view that no strides express, where a whole tensor of it is needed."""

from __future__ import annotations

from dataclasses import replace

from tofuse.fusion.storage import storages
from tofuse.ir.dims import hint
from tofuse.ir.graph import Graph, Op, Value, substitute
from tofuse.ir.region import Strided
from tofuse.ops.shapes import make_op


def materialise(graph: Graph) -> Graph:
    """Operands of library calls and outputs of the graph are real tensors after this."""
    storage = storages(graph)
    ops: list[Op] = []
    copies: dict[Value, Value] = {}
    taken = {v.name for op in graph.ops for v in op.results} | {v.name for v in graph.inputs}

    def real(v: Value | None) -> Value | None:
        if v is None or _expressible(v, storage):
            return v
        if v not in copies:
            name = f"{v.name}_copy"
            while name in taken:
                name += "_"
            taken.add(name)
            copy = make_op("convert", (v,), {"dtype": v.dtype}, name=name)
            ops.append(replace(copy, results=(replace(copy.result, strides=v.strides),)))
            copies[v] = ops[-1].result
        return copies[v]

    for op in graph.ops:
        if op.kind in ("opaque", "take", "uniform"):
            moved = {v: r for v in op.inputs if (r := real(v)) is not None and r is not v}
            op = replace(op, operands=substitute(op.operands, moved)) if moved else op
        ops.append(op)
    outputs = tuple(real(v) for v in graph.outputs)
    return replace(graph, ops=tuple(ops), outputs=outputs) if copies else graph


def _expressible(v: Value, storage: dict[Value, Strided]) -> bool:
    """Whether torch has a view for it: there are no negative strides in torch."""
    return v in storage and all(hint(s) >= 0 for s in storage[v].strides)
