"""Copy outputs that passes have merged into one tensor but that are separate tensors in eager."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tofuse.analysis.alias import AliasAnalysis
from tofuse.ir.graph import Graph, Names, Op, Value


def unalias_outputs(graph: Graph, before: Graph, caller_writable: Collection[Value]) -> Graph:
    """Return the graph with copies of outputs that share memory only since `before`.

    Batched branches, for example, become slices of one tensor. If the caller wrote into one of
    them, autograd would treat the others as written too. `caller_writable` are the outputs of
    `before` that the caller may write.
    """
    pairs = list(zip(before.outputs, graph.outputs, strict=True))
    aliases_before, aliases = AliasAnalysis(before), AliasAnalysis(graph)
    origin: dict[Value, Value] = {}  # from the base of an output to its base before the passes
    merged: set[Value] = set()  # the bases with outputs of several origins
    for old, new in pairs:
        if old is not None and new is not None:
            base, base_before = aliases.base(new), aliases_before.base(old)
            if origin.setdefault(base, base_before) is not base_before:
                merged.add(base)
    names = Names(graph)
    copies: dict[Value, Op] = {}
    for old, new in pairs:
        if old is None or new is None or old not in caller_writable or old in copies:
            continue
        if aliases.base(new) not in merged:
            continue
        copy = replace(new, name=names.fresh(f"{new.name}_copy"), strides=old.strides)
        copies[old] = Op("convert", (new,), (copy,), (("dtype", new.dtype),))
    if not copies:
        return graph
    outputs = (copies[old].result if old in copies else new for old, new in pairs)
    return replace(graph, ops=(*graph.ops, *copies.values()), outputs=tuple(outputs))
