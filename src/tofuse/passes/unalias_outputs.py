"""Copy outputs that passes have merged into one tensor but that are separate tensors in eager."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tofuse.ir.graph import Graph, Names, Op, Value
from tofuse.ops.result_types import make_op
from tofuse.passes.rewrite import may_alias


def unalias_outputs(graph: Graph, before: Graph, caller_writable: Collection[Value]) -> Graph:
    """Return the graph with copies of outputs that share memory only since `before`.

    Batched branches, for example, become slices of one tensor. If the caller wrote into one of
    them, autograd would treat the others as written too. `caller_writable` are the outputs of
    `before` that the caller may write.
    """
    pairs = list(zip(before.outputs, graph.outputs, strict=True))
    bases_before, bases_after = _alias_bases(before), _alias_bases(graph)
    origin: dict[Value, Value] = {}  # from the base of an output to its base before the passes
    merged: set[Value] = set()  # the bases with outputs of several origins
    for old, new in pairs:
        if old is not None and new is not None:
            base, base_before = bases_after.get(new, new), bases_before.get(old, old)
            if origin.setdefault(base, base_before) is not base_before:
                merged.add(base)
    names = Names(graph)
    copies: dict[Value, Op] = {}
    for old, new in pairs:
        if old is None or new is None or old not in caller_writable or old in copies:
            continue
        if bases_after.get(new, new) not in merged:
            continue
        copy = make_op(
            "convert", (new,), {"dtype": new.dtype}, name=names.fresh(f"{new.name}_copy")
        )
        copies[old] = replace(copy, results=(replace(copy.result, strides=old.strides),))
    if not copies:
        return graph
    outputs = (copies[old].result if old in copies else new for old, new in pairs)
    return replace(graph, ops=(*graph.ops, *copies.values()), outputs=tuple(outputs))


def _alias_bases(graph: Graph) -> dict[Value, Value]:
    """Return the base of every view: the value at the end of its chain of views."""
    bases: dict[Value, Value] = {}
    for op in graph.ops:
        if may_alias(op):
            bases |= dict.fromkeys(op.results, bases.get(op.inputs[0], op.inputs[0]))
    return bases
