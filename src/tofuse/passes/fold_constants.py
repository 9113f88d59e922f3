"""Computes at compile time what depends on constants only."""

from __future__ import annotations

from tofuse.ir.dims import product
from tofuse.ir.graph import Graph, Op, Operand, Scalar, Value
from tofuse.ops.table import BINARY
from tofuse.passes.constant_arithmetic import (
    EVALUATED,
    Number,
    as_element,
    evaluate,
    round_to,
    same,
    sum_of_equal,
)
from tofuse.passes.rewrite import Rewrite, Rule, Sweep, rewrite


def fold_constants(graph: Graph) -> Graph:
    """Let `full` vanish into the ops that read it, as far as the numbers stay the same bits."""
    return rewrite(graph, RULES)


def all_constant(op: Op, sweep: Sweep) -> Rewrite | None:
    """An elementwise op on constants is a constant, where `constants.evaluate` knows it."""
    dtype, args = op.inputs[0].dtype, []
    for x in op.operands:
        value = _constant(x, sweep)
        element = None if value is None else as_element(value, dtype)
        if element is None:
            return None
        args.append(element)
    return _full(op, evaluate(op.kind, tuple(args), dtype))


def constant_operand(op: Op, sweep: Sweep) -> Rewrite | None:
    """op(x, full(c)) = op(x, c), while a tensor is left"""
    new = tuple(_scalar(x, sweep) for x in op.operands)
    if new == op.operands or not any(isinstance(x, Value) for x in new):
        return None
    return (Op(op.kind, new, op.results, op.attrs, op.loc),)


def constant_condition(op: Op, sweep: Sweep) -> Rewrite | None:
    """where(full(True), x, y) = x, where(full(False), x, y) = y"""
    c = _constant(op.operands[0], sweep)
    if c is None:
        return None
    chosen = op.operands[1] if c else op.operands[2]
    if isinstance(chosen, Value):
        return sweep.instead(op, chosen)
    return _full(op, _constant(chosen, sweep))


def constant_choices(op: Op, sweep: Sweep) -> Rewrite | None:
    """where(c, full(a), y) = where(c, a, y); the result keeps its type if both are constant"""
    condition, *choices = op.operands
    new = tuple(_scalar(x, sweep) for x in choices)
    if new == tuple(choices):
        return None
    both = not any(isinstance(x, Value) for x in new)
    attrs = (("dtype", op.result.dtype),) if both else op.attrs
    return (Op("where", (condition, *new), op.results, attrs, op.loc),)


def constant_view(op: Op, sweep: Sweep) -> Rewrite | None:
    """A view of full(c) is full(c), unless somebody outside sees that it is a view."""
    return _full(op, _constant(op.operands[0], sweep)) if sweep.is_private(op.result) else None


def constant_convert(op: Op, sweep: Sweep) -> Rewrite | None:
    """to(full(c), t) = full(c as t)"""
    value = _constant(op.operands[0], sweep)
    return None if value is None else _full(op, round_to(value, op.result.dtype))


def constant_join(op: Op, sweep: Sweep) -> Rewrite | None:
    """A cat of full(c) with full(c) is full(c), and so is a pad of it with c."""
    values = tuple(_constant(x, sweep) for x in op.operands)
    first = values[0]
    if first is None or not all(v is not None and same(v, first) for v in values):
        return None
    return _full(op, first)


def constant_extreme(op: Op, sweep: Sweep) -> Rewrite | None:
    """The maximum or minimum of full(c) is c."""
    x = op.inputs[0]
    if x.dtype is not op.result.dtype or _count(op) in (None, 0):
        return None
    return _full(op, _constant(x, sweep))


def constant_sum(op: Op, sweep: Sweep) -> Rewrite | None:
    """A sum of n times c is n * c, where no partial sum rounds."""
    value, count = _constant(op.operands[0], sweep), _count(op)
    if value is None or count is None:
        return None
    return _full(op, sum_of_equal(value, count, op.result.dtype))


def _constant(x: Operand, sweep: Sweep) -> Number | None:
    """The number that an operand is in every element, if it is one."""
    if isinstance(x, Scalar):
        return x.value if isinstance(x.value, (bool, int, float)) else None
    full = sweep.define(x, "full")
    value = full.attr("value") if full else None
    return round_to(value, x.dtype) if isinstance(value, (bool, int, float)) else None


def _scalar(x: Operand, sweep: Sweep) -> Operand:
    value = None if isinstance(x, Scalar) else _constant(x, sweep)
    return x if value is None else Scalar(value)


def _full(op: Op, value: Number | None) -> Rewrite | None:
    if value is None:
        return None
    result = op.result
    attrs = (("value", value), ("shape", result.shape), ("dtype", result.dtype))
    return (Op("full", (), op.results, attrs, op.loc),)


def _count(op: Op) -> int | None:
    """How many elements each element of a reduction's result comes from, if known."""
    count = product(op.inputs[0].shape[d] for d in op.ints("dims"))
    return count if isinstance(count, int) else None


# pow of a tensor and pow of a constant are two functions in PyTorch, with results of their own.
_WITH_CONSTANT = [name for name in BINARY if name != "pow"]

RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(sorted(EVALUATED), (all_constant,)),
    **{
        name: (all_constant, constant_operand) if name in EVALUATED else (constant_operand,)
        for name in _WITH_CONSTANT
    },
    "where": (constant_condition, constant_choices),
    "convert": (constant_convert,),
    **dict.fromkeys(("broadcast", "reshape", "permute", "slice"), (constant_view,)),
    **dict.fromkeys(("cat", "pad"), (constant_join,)),
    **dict.fromkeys(("amax", "amin"), (constant_extreme,)),
    "sum": (constant_sum,),
}
