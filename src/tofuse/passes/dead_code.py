"""Remove ops whose results are not used."""

from __future__ import annotations

from dataclasses import replace

from tofuse.analysis.alias import has_effect
from tofuse.ir.graph import Graph, Op, Value


def dead_code(graph: Graph) -> Graph:
    """Keep the ops that an output depends on, and opaque ops with side effects."""
    live = {v for v in graph.outputs if v is not None}
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if has_effect(op) or any(r in live for r in op.results):
            kept.append(op)
            live.update(x for x in op.operands if isinstance(x, Value))
    if len(kept) == len(graph.ops):
        return graph
    return replace(graph, ops=tuple(reversed(kept)))
