"""Graph -> Graph: give each direction that a range is broadcast along a range of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tofuse.analysis.alias import MemRef
from tofuse.ir.graph import Graph, Names, Op, Value


def duplicate_ranges(graph: Graph, storage: Mapping[Value, MemRef]) -> Graph:
    """Duplicate an `iota` that is broadcast along several dimensions; ranges cost nothing.

    Views of one range along rows and along columns would unify the two axes, also where their
    readers are unrelated.
    """
    producers = graph.producers()
    names = Names(graph)
    ranges: dict[Value, dict[object, Value]] = {}  # by original, then by the dimensions
    ops: list[Op] = []
    for op in graph.ops:
        if op.kind == "broadcast" and producers.get(v := op.inputs[0], op).kind == "iota":
            range_along = ranges.setdefault(v, {})
            if not range_along:
                range_along[op.attr("dims")] = v
            if op.attr("dims") not in range_along:
                copy = replace(v, name=names.fresh(f"{v.name}_dup"))
                ops.append(replace(producers[v], results=(copy,)))
                range_along[op.attr("dims")] = copy
            op = replace(op, operands=(range_along[op.attr("dims")],))
        ops.append(op)
    return replace(graph, ops=tuple(ops)) if len(ops) > len(graph.ops) else graph
