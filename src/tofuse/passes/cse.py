"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable

from tofuse.analysis.alias import has_effect
from tofuse.ir.call_arguments import exact_key
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ops.table import COMMUTATIVE
from tofuse.passes.rewrite import Rewriter


def cse(graph: Graph) -> Graph:
    """Replace each op by an earlier equal op, unless the caller could see the difference."""
    rewriter = Rewriter(graph)
    available: dict[Hashable, Op] = {}
    for op in graph.ops:
        op = rewriter.remap_operands(op)
        if not is_pure(op):
            rewriter.emit(op)
            continue
        earlier = available.setdefault(_expression_key(op), op)
        if earlier is op or not _replace_with_available(op, earlier, rewriter):
            rewriter.emit(op)
    return rewriter.rewritten_graph()


def is_pure(op: Op) -> bool:
    """Whether an op gives the same results whenever it runs on the same operands."""
    if op.kind != "opaque":
        return True  # `uniform` too: its results are a function of the seed
    target = str(op.attr("target"))
    return bool(op.results) and not has_effect(op) and not any(word in target for word in IMPURE)


def _replace_with_available(op: Op, earlier: Op, rewriter: Rewriter) -> bool:
    """Replace the results of `op` by those of `earlier`, all or none; return whether it did."""
    if len(op.results) > 1:
        if any(r in rewriter.graph.outputs for r in op.results):
            return False
        if any(a.layout != b.layout for a, b in zip(op.results, earlier.results, strict=True)):
            return False
        rewriter.mapping.update(zip(op.results, earlier.results, strict=True))
        rewriter.changed = True
        return True
    value = rewriter.legal_replacement(op, earlier.result)
    if value is None:
        return False
    rewriter.replace_op(op, value)
    return True


def _expression_key(op: Op) -> Hashable:
    """Return a key that is equal for equal expressions."""
    operands: list[Hashable] = [x if isinstance(x, Value) else x.key for x in op.operands]
    if op.kind in COMMUTATIVE and len(op.inputs) == 2:
        operands.sort(key=id)
    attrs = tuple((name, exact_key(value)) for name, value in op.attrs)
    return op.kind, tuple(operands), attrs, op.result.type.device


IMPURE = ("rand", "seed", "dropout", "bernoulli", "empty", "normal", "uniform", "multinomial")
