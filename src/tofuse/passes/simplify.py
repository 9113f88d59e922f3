"""Rewrites arithmetic to cheaper arithmetic that gives the same bits."""

from __future__ import annotations

import math

from tofuse.ir.graph import Graph, Op, Operand, Scalar, Value
from tofuse.ir.types import DType
from tofuse.passes.rewrite import Rewrite, Rule, Sweep, rewrite


def simplify(graph: Graph) -> Graph:
    """Apply algebra that holds for every value, with -0.0, infinities and nan among them."""
    return rewrite(graph, RULES)


def mul_one(op: Op, sweep: Sweep) -> Rewrite | None:
    """x * 1 = x, for numbers"""
    x, c = _constant_last(op)
    return sweep.instead(op, x) if _is(c, 1) and _numeric(op) else None


def mul_minus_one(op: Op, sweep: Sweep) -> Rewrite | None:
    """x * -1 = -x"""
    x, c = _constant_last(op)
    return _become(op, "neg", x) if _is(c, -1) and _numeric(op) else None


def mul_neg_neg(op: Op, sweep: Sweep) -> Rewrite | None:
    """(-x) * (-y) = x * y"""
    a, b = (sweep.define(x, "neg") for x in op.operands)
    return _become(op, "mul", a.operands[0], b.operands[0]) if a and b else None


def div_one(op: Op, sweep: Sweep) -> Rewrite | None:
    """x / 1 = x"""
    x, c = op.operands
    return sweep.instead(op, x) if _is(c, 1) else None


def div_power_of_two(op: Op, sweep: Sweep) -> Rewrite | None:
    """x / 2**k = x * 2**-k, where both are normal numbers: either is the exact quotient, rounded"""
    x, c = op.operands
    if not isinstance(c, Scalar) or not isinstance(c.value, (int, float)) or c.value is True:
        return None
    mantissa, exponent = math.frexp(c.value)
    if abs(mantissa) != 0.5 or abs(exponent - 1) > _LARGEST_EXPONENT.get(op.result.dtype, 0):
        return None
    return _become(op, "mul", x, Scalar(1.0 / c.value))


def add_zero(op: Op, sweep: Sweep) -> Rewrite | None:
    """x + -0.0 = x; x + 0 = x for integers. x + 0.0 is another thing: it turns -0.0 into 0.0."""
    x, c = _constant_last(op)
    zero = _is(c, -0.0) if op.result.dtype.is_float else _is(c, 0)
    return sweep.instead(op, x) if zero and _numeric(op) else None


def add_neg(op: Op, sweep: Sweep) -> Rewrite | None:
    """x + (-y) = x - y, and (-y) + x = x - y"""
    a, b = op.operands
    if neg := sweep.define(b, "neg"):
        return _become(op, "sub", a, neg.operands[0])
    if neg := sweep.define(a, "neg"):
        return _become(op, "sub", b, neg.operands[0])
    return None


def sub_zero(op: Op, sweep: Sweep) -> Rewrite | None:
    """x - 0 = x, but not x - -0.0"""
    x, c = op.operands
    return sweep.instead(op, x) if _is(c, 0) else None


def sub_neg(op: Op, sweep: Sweep) -> Rewrite | None:
    """x - (-y) = x + y"""
    neg = sweep.define(op.operands[1], "neg")
    return _become(op, "add", op.operands[0], neg.operands[0]) if neg else None


def twice_undone(op: Op, sweep: Sweep) -> Rewrite | None:
    """-(-x) = x; ~~x = x; not not x = x for booleans"""
    inner = sweep.define(op.operands[0], op.kind)
    return sweep.instead(op, inner.operands[0]) if inner else None


def abs_again(op: Op, sweep: Sweep) -> Rewrite | None:
    """||x|| = |x|"""
    inner = sweep.define(op.operands[0], "abs")
    return sweep.instead(op, inner.result) if inner else None


def abs_neg(op: Op, sweep: Sweep) -> Rewrite | None:
    """|-x| = |x|, where there is a sign"""
    inner = sweep.define(op.operands[0], "neg")
    if inner is None or op.result.dtype is DType.U8:
        return None
    return _become(op, "abs", inner.operands[0])


def not_equal(op: Op, sweep: Sweep) -> Rewrite | None:
    """not (x == y) = (x != y), and back; not so for an order, where nan is on neither side"""
    for kind, opposite in (("eq", "ne"), ("ne", "eq")):
        if inner := sweep.define(op.operands[0], kind):
            return _become(op, opposite, *inner.operands)
    return None


def bound_again(op: Op, sweep: Sweep) -> Rewrite | None:
    """max(max(x, y), y) = max(x, y) and max(x, max(x, y)) = max(x, y); the same for min"""
    for side in (0, 1):
        again, bound = op.operands[side], op.operands[1 - side]
        inner = sweep.define(again, op.kind)
        if inner and _same(inner.operands[1 - side], bound):
            return sweep.instead(op, again)
    return None


def both_same(op: Op, sweep: Sweep) -> Rewrite | None:
    """max(x, x) = min(x, x) = x; x & x = x | x = x"""
    x, y = op.operands
    return sweep.instead(op, x) if x is y else None


def truth_neutral(op: Op, sweep: Sweep) -> Rewrite | None:
    """x and True = x, x or False = x, for booleans"""
    x, c = _constant_last(op)
    neutral = op.kind == "logical_and"
    return sweep.instead(op, x) if isinstance(c, Scalar) and c.value is neutral else None


def where_same(op: Op, sweep: Sweep) -> Rewrite | None:
    """where(c, x, x) = x"""
    _, x, y = op.operands
    return sweep.instead(op, x) if x is y else None


def where_not(op: Op, sweep: Sweep) -> Rewrite | None:
    """where(not c, x, y) = where(c, y, x), for a boolean c"""
    c, x, y = op.operands
    inner = sweep.define(c, "logical_not")
    if inner is None or inner.inputs[0].dtype is not DType.BOOL:
        return None
    return (Op("where", (inner.operands[0], y, x), op.results, op.attrs, op.loc),)


def pow_as_torch(op: Op, sweep: Sweep) -> Rewrite | None:
    """x ** c for c = 2, 3, 0.5, -0.5, -1 as PyTorch's CPU kernel computes it

    It makes no roots and reciprocals of float16, where pow(-0.0, 0.5) is 0.0 and the root is -0.0.
    A cube of halves would be rounded once more on the way.
    """
    x, c = op.operands
    if not isinstance(x, Value) or not isinstance(c, Scalar):
        return None
    if _is(c, 2):
        return _become(op, "mul", x, x)
    if _is(c, 3) and not x.dtype.is_narrow:
        square = sweep.make("mul", (x, x), like=op)
        return (square, *_become(op, "mul", square.result, x))
    if op.result.dtype not in (DType.F64, DType.F32, DType.BF16):
        return None
    for exponent, kind in ((0.5, "sqrt"), (-0.5, "rsqrt"), (-1, "reciprocal")):
        if _is(c, exponent):
            return _become(op, kind, x)
    return None


def pow_one(op: Op, sweep: Sweep) -> Rewrite | None:
    """x ** 1 = x"""
    x, c = op.operands
    return sweep.instead(op, x) if _is(c, 1) else None


def convert_same(op: Op, sweep: Sweep) -> Rewrite | None:
    """A conversion to the type it has already is nothing, unless a caller needs the copy."""
    return sweep.instead(op, op.operands[0])


def convert_twice(op: Op, sweep: Sweep) -> Rewrite | None:
    """to(to(x, wide), t) = to(x, t), where wide holds every value of x's type

    From a float to an integer t must hold them too: out of range, the float's width matters.
    """
    inner = sweep.define(op.operands[0], "convert")
    if inner is None:
        return None
    x, wide, to = inner.inputs[0], inner.result.dtype, op.result.dtype
    if not _holds(wide, x.dtype) or (wide.is_float and to.is_int and not _holds(to, x.dtype)):
        return None
    return _become(op, "convert", x)


def extreme_of_one(op: Op, sweep: Sweep) -> Rewrite | None:
    """The maximum or minimum over dimensions of extent 1 is a reshape, if nobody needs a copy."""
    x = op.inputs[0]
    if x.dtype is not op.result.dtype or not sweep.is_private(op.result):
        return None
    if any(x.shape[d] != 1 for d in op.ints("dims")):
        return None
    return (Op("reshape", (x,), op.results, (("shape", op.result.shape),), op.loc),)


def _become(op: Op, kind: str, *operands: Operand) -> tuple[Op, ...]:
    """Another op for the same result."""
    attrs = op.attrs if kind == "convert" else ()
    return (Op(kind, operands, op.results, attrs, op.loc),)


def _constant_last(op: Op) -> tuple[Operand, Operand]:
    x, c = op.operands
    return (c, x) if isinstance(x, Scalar) else (x, c)


def _is(x: Operand, number: int | float) -> bool:
    """Whether an operand is that constant, with that sign; 0 counts as 0.0, not as -0.0."""
    if not isinstance(x, Scalar) or isinstance(x.value, bool):
        return False
    if not isinstance(x.value, (int, float)) or x.value != number:
        return False
    return math.copysign(1, x.value) == math.copysign(1, number)


def _same(a: Operand, b: Operand) -> bool:
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        return a.key == b.key
    return a is b


def _holds(wide: DType, dtype: DType) -> bool:
    return wide is dtype or wide in _WIDER.get(dtype, ())


def _numeric(op: Op) -> bool:
    return op.result.dtype.is_float or op.result.dtype.is_int


# Powers of two up to here, and their reciprocals, are normal numbers of the type.
_LARGEST_EXPONENT = {DType.F64: 1022, DType.F32: 126, DType.BF16: 126, DType.F16: 14}

_FLOATS = (DType.F32, DType.F64)
_SMALL_INTS = (DType.I16, DType.I32, DType.I64, DType.F16, DType.BF16, *_FLOATS)
_WIDER: dict[DType, tuple[DType, ...]] = {
    DType.BOOL: (DType.U8, DType.I8, *_SMALL_INTS),
    DType.U8: _SMALL_INTS,
    DType.I8: _SMALL_INTS,
    DType.I16: (DType.I32, DType.I64, *_FLOATS),
    DType.I32: (DType.I64, DType.F64),
    DType.BF16: _FLOATS,
    DType.F16: _FLOATS,
    DType.F32: (DType.F64,),
}

RULES: dict[str, tuple[Rule, ...]] = {
    "mul": (mul_one, mul_minus_one, mul_neg_neg),
    "div": (div_one, div_power_of_two),
    "add": (add_zero, add_neg),
    "sub": (sub_zero, sub_neg),
    "neg": (twice_undone,),
    "bitwise_not": (twice_undone,),
    "logical_not": (twice_undone, not_equal),
    "logical_and": (both_same, truth_neutral),
    "logical_or": (both_same, truth_neutral),
    "bitwise_and": (both_same,),
    "bitwise_or": (both_same,),
    "abs": (abs_again, abs_neg),
    "maximum": (both_same, bound_again),
    "minimum": (both_same, bound_again),
    "where": (where_same, where_not),
    "pow": (pow_one, pow_as_torch),
    "convert": (convert_same, convert_twice),
    "amax": (extreme_of_one,),
    "amin": (extreme_of_one,),
}
