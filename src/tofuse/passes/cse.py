"""Computes equal expressions once."""

from __future__ import annotations

from tofuse.ir.graph import Graph, Op, Value
from tofuse.passes.dead_code import has_effect
from tofuse.passes.rewrite import Sweep

Key = tuple[str, tuple[object, ...], str, str]


def cse(graph: Graph) -> Graph:
    """Let the first of equal ops stand for the later ones, unless a caller could tell."""
    sweep = Sweep(graph)
    first: dict[Key, Op] = {}
    for op in graph.ops:
        op = sweep.current(op)
        if not is_pure(op):
            sweep.emit(op)
            continue
        kept = first.setdefault(_key(op), op)
        if kept is op or not _merge(op, kept, sweep):
            sweep.emit(op)
    return sweep.result()


def is_pure(op: Op) -> bool:
    """Whether two runs of an op on the same operands give the same results."""
    if op.kind != "opaque":
        return True  # uniform too: its numbers follow from its seed
    target = str(op.attr("target"))
    return bool(op.results) and not has_effect(op) and not any(word in target for word in IMPURE)


def _merge(op: Op, kept: Op, sweep: Sweep) -> bool:
    """Let the results of `kept` stand for those of `op`, all or none."""
    if len(op.results) > 1:
        if any(r in sweep.graph.outputs for r in op.results):
            return False
        if any(a.layout != b.layout for a, b in zip(op.results, kept.results, strict=True)):
            return False
        sweep.mapping.update(zip(op.results, kept.results, strict=True))
        sweep.changed = True
        return True
    value = sweep.instead(op, kept.result)
    if value is None:
        return False
    sweep.drop(op, value)
    return True


def _key(op: Op) -> Key:
    """Equal for ops that compute the same: text tells 0.0 from -0.0 and 1 from True."""
    operands: list[object] = [x if isinstance(x, Value) else x.key for x in op.operands]
    if op.kind in COMMUTATIVE and len(op.inputs) == 2:
        operands.sort(key=id)
    return op.kind, tuple(operands), repr(op.attrs), op.result.type.device


# maximum and minimum are not: which of 0.0 and -0.0 they give depends on the sides
COMMUTATIVE = frozenset({"add", "mul", "eq", "ne", "logical_and", "logical_or", "logical_xor"})

IMPURE = ("rand", "seed", "dropout", "bernoulli", "empty", "normal", "uniform", "multinomial")
