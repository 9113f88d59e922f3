"""What the caller gets as tensors of their own are such after the passes, too."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tofuse.ir.graph import Graph, Names, Op, Value
from tofuse.ops.result_types import make_op
from tofuse.passes.rewrite import may_alias


def unalias_outputs(graph: Graph, before: Graph, seen: Collection[Value]) -> Graph:
    """The graph with copies of results that became parts of one tensor, as batched branches do.

    Where one is written over, autograd would take the others for written, too. `seen` are the
    results, as they were called before the passes, that the caller may write.
    """
    pairs = list(zip(before.outputs, graph.outputs, strict=True))
    old, new = _roots(before), _roots(graph)
    owner: dict[Value, Value | None] = {}  # by what it is now: what it was, None for several
    for was, v in pairs:
        if was is not None and v is not None:
            root = old.get(was, was)
            here = new.get(v, v)
            owner[here] = root if owner.get(here, root) is root else None
    names = Names(graph)
    copies: dict[Value, Op] = {}
    for was, v in pairs:
        shared = v is not None and owner.get(new.get(v, v), v) is None
        if was is None or v is None or was not in seen or not shared or was in copies:
            continue
        copy = make_op("convert", (v,), {"dtype": v.dtype}, name=names.fresh(f"{v.name}_own"))
        copies[was] = replace(copy, results=(replace(copy.result, strides=was.strides),))
    if not copies:
        return graph
    outputs = (copies[was].result if was in copies else v for was, v in pairs)
    return replace(graph, ops=(*graph.ops, *copies.values()), outputs=tuple(outputs))


def _roots(graph: Graph) -> dict[Value, Value]:
    """Of every view: what it is a view of, at last."""
    found: dict[Value, Value] = {}
    for op in graph.ops:
        if may_alias(op):
            found |= dict.fromkeys(op.results, found.get(op.inputs[0], op.inputs[0]))
    return found
