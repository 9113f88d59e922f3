"""Drops ops whose results nobody reads."""

from __future__ import annotations

from dataclasses import replace

from tofuse.ir.graph import Graph, Op, Value


def dead_code(graph: Graph) -> Graph:
    """Keep what an output needs, and the opaque ops that have an effect of their own."""
    live = {v for v in graph.outputs if v is not None}
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if has_effect(op) or any(r in live for r in op.results):
            kept.append(op)
            live.update(x for x in op.operands if isinstance(x, Value))
    if len(kept) == len(graph.ops):
        return graph
    return replace(graph, ops=tuple(reversed(kept)))


def has_effect(op: Op) -> bool:
    """Whether an op matters even where its results do not."""
    return op.kind == "opaque" and ("effect", True) in op.attrs
