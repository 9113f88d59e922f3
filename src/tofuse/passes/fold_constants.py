"""Evaluate ops on constants at compile time."""

from __future__ import annotations

from dataclasses import replace

from tofuse.ir.dims import product
from tofuse.ir.graph import Graph, Op, Operand, Scalar, Value
from tofuse.ops.table import BINARY
from tofuse.passes.constant_arithmetic import (
    EVALUATED,
    Number,
    as_operand,
    evaluate_elementwise,
    round_to,
    same_bits,
    sum_of_constant,
)
from tofuse.passes.rewrite import Replacement, Rewriter, RewriteRule, redefine, rewrite


def fold_constants(graph: Graph) -> Graph:
    """Fold `full` into the ops that read it, if the results keep the same bits."""
    return rewrite(graph, RULES)


def elementwise_of_constants(op: Op, rewriter: Rewriter) -> Replacement | None:
    """op(full(a), full(b)) = full(op(a, b)), if `evaluate_elementwise` knows the exact result"""
    dtype, args = op.inputs[0].dtype, []
    for x in op.operands:
        value = _constant_value(x, rewriter)
        element = None if value is None else as_operand(value, dtype)
        if element is None:
            return None
        args.append(element)
    return _replace_with_full(op, evaluate_elementwise(op.kind, tuple(args), dtype))


def constant_operand(op: Op, rewriter: Rewriter) -> Replacement | None:
    """op(x, full(c)) = op(x, c), if another operand is a tensor"""
    new = tuple(_as_scalar(x, rewriter) for x in op.operands)
    if new == op.operands or not any(isinstance(x, Value) for x in new):
        return None
    return (replace(op, operands=new),)


def constant_condition(op: Op, rewriter: Rewriter) -> Replacement | None:
    """where(full(True), x, y) = x; where(full(False), x, y) = y"""
    c = _constant_value(op.operands[0], rewriter)
    if c is None:
        return None
    arm = op.operands[1] if c else op.operands[2]
    if isinstance(arm, Value):
        return rewriter.legal_replacement(op, arm)
    return _replace_with_full(op, _constant_value(arm, rewriter))


def constant_arms(op: Op, rewriter: Rewriter) -> Replacement | None:
    """where(c, full(a), y) = where(c, a, y); where(c, full(a), full(b)) keeps its result type"""
    condition, *arms = op.operands
    new = tuple(_as_scalar(x, rewriter) for x in arms)
    if new == tuple(arms):
        return None
    both = not any(isinstance(x, Value) for x in new)
    attrs = {"dtype": op.result.dtype} if both else dict(op.attrs)
    return redefine(op, "where", condition, *new, **attrs)


def view_of_constant(op: Op, rewriter: Rewriter) -> Replacement | None:
    """view(full(c)) = full(c), if the result is private"""
    if not rewriter.is_private(op.result):
        return None
    return _replace_with_full(op, _constant_value(op.operands[0], rewriter))


def convert_of_constant(op: Op, rewriter: Rewriter) -> Replacement | None:
    """to(full(c), t) = full(c as t)"""
    value = _constant_value(op.operands[0], rewriter)
    return None if value is None else _replace_with_full(op, round_to(value, op.result.dtype))


def concat_or_pad_of_constant(op: Op, rewriter: Rewriter) -> Replacement | None:
    """cat(full(c), full(c), ...) = full(c); pad(full(c), c) = full(c)"""
    values = tuple(_constant_value(x, rewriter) for x in op.operands)
    first = values[0]
    if first is None or not all(v is not None and same_bits(v, first) for v in values):
        return None
    return _replace_with_full(op, first)


def extremum_of_constant(op: Op, rewriter: Rewriter) -> Replacement | None:
    """amax(full(c)) = full(c), if the reduction is not empty; also amin"""
    x = op.inputs[0]
    if x.dtype is not op.result.dtype or _reduced_elements(op) in (None, 0):
        return None
    return _replace_with_full(op, _constant_value(x, rewriter))


def reduce_sum_of_constant(op: Op, rewriter: Rewriter) -> Replacement | None:
    """sum(full(c)) over n elements = full(n * c), if no partial sum rounds"""
    value, count = _constant_value(op.operands[0], rewriter), _reduced_elements(op)
    if value is None or count is None:
        return None
    return _replace_with_full(op, sum_of_constant(value, count, op.result.dtype))


def _constant_value(x: Operand, rewriter: Rewriter) -> Number | None:
    """Return the number that every element of an operand equals; None if not known."""
    if isinstance(x, Scalar):
        return x.value if isinstance(x.value, (bool, int, float)) else None
    full = rewriter.defining_op(x, "full")
    value = full.attr("value") if full else None
    return round_to(value, x.dtype) if isinstance(value, (bool, int, float)) else None


def _as_scalar(x: Operand, rewriter: Rewriter) -> Operand:
    value = None if isinstance(x, Scalar) else _constant_value(x, rewriter)
    return x if value is None else Scalar(value)


def _replace_with_full(op: Op, value: Number | None) -> Replacement | None:
    if value is None:
        return None
    return redefine(op, "full", value=value, shape=op.result.shape, dtype=op.result.dtype)


def _reduced_elements(op: Op) -> int | None:
    """Return how many elements a reduction combines into each result; None if not known."""
    count = product(op.inputs[0].shape[d] for d in op.ints("dims"))
    return count if isinstance(count, int) else None


# PyTorch computes pow with a tensor exponent and pow with a constant exponent differently.
_WITH_CONSTANT = [name for name in BINARY if name != "pow"]

RULES: dict[str, tuple[RewriteRule, ...]] = {
    **dict.fromkeys(sorted(EVALUATED), (elementwise_of_constants,)),
    **dict.fromkeys(_WITH_CONSTANT, (elementwise_of_constants, constant_operand)),
    "where": (constant_condition, constant_arms),
    "convert": (convert_of_constant,),
    **dict.fromkeys(("broadcast", "reshape", "permute", "slice"), (view_of_constant,)),
    **dict.fromkeys(("cat", "pad"), (concat_or_pad_of_constant,)),
    **dict.fromkeys(("amax", "amin"), (extremum_of_constant,)),
    "sum": (reduce_sum_of_constant,),
}
