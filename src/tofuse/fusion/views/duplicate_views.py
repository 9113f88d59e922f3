"""Graph -> Graph: duplicate a view that an op reads along two of its dimensions at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tofuse.analysis.alias import MemRef
from tofuse.fusion.lower.align import aligns, views_without_strides
from tofuse.ir.graph import Graph, Names, Op, Value, substitute_operands


def duplicate_views(graph: Graph, storage: Mapping[Value, MemRef]) -> Graph:
    """Give an op separate views where one view without strides would unify two of its axes.

    If `y` is such a view, both operands of `y[:, None] - y[:, :, None]` have the axes of `y`;
    with two views equal to `y`, each operand has its own.
    """
    producers = graph.producers()
    names = Names(graph)
    duplicates: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in graph.ops:
        chains = {v: views_without_strides(v, storage, producers) for v in op.inputs}
        views_seen: set[Op] = set()
        for v, chain in chains.items():
            shared = views_seen & set(chain)
            if v not in duplicates and shared and not aligns(op, storage, producers):
                copies = _duplicate_chain(chain, names)
                ops += copies
                duplicates[v] = copies[-1].result
            views_seen |= set(chain)
        if duplicates.keys() & chains:
            op = replace(op, operands=substitute_operands(op.operands, duplicates))
        ops.append(op)
    return replace(graph, ops=tuple(ops)) if duplicates else graph


def _duplicate_chain(chain: Sequence[Op], names: Names) -> list[Op]:
    """Return the same views with fresh result names."""
    copies: list[Op] = []
    new: dict[Value, Value] = {}
    for op in chain:
        result = replace(op.result, name=names.fresh(f"{op.result.name}_dup"))
        copies.append(
            replace(op, operands=substitute_operands(op.operands, new), results=(result,))
        )
        new[op.result] = result
    return copies
