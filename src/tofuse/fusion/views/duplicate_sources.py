"""Graph -> Graph: compute a range or a filled tensor once for each reader, where sharing costs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from tofuse.analysis.alias import MemRef, updates_operand
from tofuse.cost.machine import SMALLEST_POOLED
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Graph, Names, Op, Value


def duplicate_sources(graph: Graph, storage: Mapping[Value, MemRef]) -> Graph:
    """Duplicate what costs nothing, or no more than in eager, for readers that must not share it.

    - An `iota` that is broadcast along several dimensions: views of one range along rows and along
      columns would unify the two axes, also where their readers are unrelated.
    - A `full` that several library calls update: each can write only into memory of its own.
    """
    producers = graph.producers()
    names = Names(graph)
    copies: dict[Value, dict[Hashable, Value]] = {}  # by original, then by reader
    ops: list[Op] = []
    for op in graph.ops:
        source = producers.get(op.inputs[0]) if op.inputs else None
        reader = None if source is None else _separate_reader(op, source)
        if source is not None and reader is not None:
            by_reader = copies.setdefault(source.result, {})
            if not by_reader:
                by_reader[reader] = source.result
            if reader not in by_reader:
                copy = replace(source.result, name=names.fresh(f"{source.result.name}_dup"))
                ops.append(replace(source, results=(copy,)))
                by_reader[reader] = copy
            op = replace(op, operands=(by_reader[reader], *op.operands[1:]))
        ops.append(op)
    return replace(graph, ops=tuple(ops)) if len(ops) > len(graph.ops) else graph


def _separate_reader(op: Op, source: Op) -> Hashable | None:
    """Return the key of a reader, or None if it may share the source with all.

    Readers with different keys need different copies of the source.
    """
    if op.kind == "broadcast" and source.kind == "iota":
        return op.attr("dims")
    if op.kind == "opaque" and source.kind == "full" and updates_operand(str(op.attr("target"))):
        in_place = source.result.type.on_host  # as large results of library calls are made
        return op if in_place and size_hint(source.result.type.nbytes) >= SMALLEST_POOLED else None
    return None
