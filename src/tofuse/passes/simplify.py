"""Rewrite arithmetic to cheaper arithmetic with bit-identical results."""

from __future__ import annotations

import math

from tofuse.ir.graph import Graph, Op, Operand, Scalar, Value
from tofuse.ir.types import DType
from tofuse.ops.table import COMMUTATIVE, OPS, Pattern
from tofuse.passes.rewrite import Replacement, Rewriter, RewriteRule, identity, redefine, rewrite


def simplify(graph: Graph) -> Graph:
    """Apply algebraic identities that hold for every value, including -0.0, infinities and nan."""
    return rewrite(graph, RULES)


def neutral_constant(op: Op, rewriter: Rewriter) -> Replacement | None:
    """x * 1 = x / 1 = x ** 1 = x; x + -0.0 = x - 0 = x; x and True = x; x or False = x

    x + 0.0 is not x: it turns -0.0 into 0.0, as x - -0.0 does. An integer has only one zero.
    """
    x, c = _constant_last(op)
    neutral = 0 if op.kind == "add" and not op.result.dtype.is_float else _NEUTRAL[op.kind]
    known = _is_constant(c, neutral) and (isinstance(neutral, bool) or _is_numeric(op))
    return rewriter.legal_replacement(op, x) if known else None


def mul_minus_one(op: Op, rewriter: Rewriter) -> Replacement | None:
    """x * -1 = -x, if x is not boolean"""
    x, c = _constant_last(op)
    return redefine(op, "neg", x) if _is_constant(c, -1) and _is_numeric(op) else None


def mul_of_bool(op: Op, rewriter: Rewriter) -> Replacement | None:
    """to(b, float) * c = where(b, c, 0 * c), if b is boolean and c is finite"""
    x, c = _constant_last(op)
    converted = rewriter.defining_op(x, "convert")
    if converted is None or converted.inputs[0].dtype is not DType.BOOL:
        return None
    if not op.result.dtype.is_float or not isinstance(c, Scalar):
        return None
    if not isinstance(c.value, (int, float)) or not math.isfinite(c.value):
        return None
    zero = Scalar(0.0 * c.value)
    return redefine(op, "where", converted.operands[0], c, zero, dtype=op.result.dtype)


def mul_neg_neg(op: Op, rewriter: Rewriter) -> Replacement | None:
    """(-x) * (-y) = x * y"""
    a, b = (rewriter.defining_op(x, "neg") for x in op.operands)
    return redefine(op, "mul", a.operands[0], b.operands[0]) if a and b else None


def div_power_of_two(op: Op, rewriter: Rewriter) -> Replacement | None:
    """x / 2**k = x * 2**-k, if 2**k and 2**-k are normal: both are the exact quotient, rounded"""
    x, c = op.operands
    if not isinstance(c, Scalar) or not isinstance(c.value, (int, float)) or c.value is True:
        return None
    mantissa, exponent = math.frexp(c.value)
    if abs(mantissa) != 0.5 or abs(exponent - 1) > _MAX_EXPONENT.get(op.result.dtype, 0):
        return None
    return redefine(op, "mul", x, Scalar(1.0 / c.value))


def add_neg(op: Op, rewriter: Rewriter) -> Replacement | None:
    """x + (-y) = x - y; (-y) + x = x - y"""
    a, b = op.operands
    for x, y in ((a, b), (b, a)):
        if neg := rewriter.defining_op(y, "neg"):
            return redefine(op, "sub", x, neg.operands[0])
    return None


def sub_neg(op: Op, rewriter: Rewriter) -> Replacement | None:
    """x - (-y) = x + y"""
    neg = rewriter.defining_op(op.operands[1], "neg")
    return redefine(op, "add", op.operands[0], neg.operands[0]) if neg else None


def involution(op: Op, rewriter: Rewriter) -> Replacement | None:
    """-(-x) = x; ~~x = x; not not x = x if x is boolean"""
    inner = rewriter.defining_op(op.operands[0], op.kind)
    return rewriter.legal_replacement(op, inner.operands[0]) if inner else None


def abs_abs(op: Op, rewriter: Rewriter) -> Replacement | None:
    """||x|| = |x|"""
    inner = rewriter.defining_op(op.operands[0], "abs")
    return rewriter.legal_replacement(op, inner.result) if inner else None


def abs_neg(op: Op, rewriter: Rewriter) -> Replacement | None:
    """|-x| = |x|, if the type is signed"""
    inner = rewriter.defining_op(op.operands[0], "neg")
    if inner is None or op.result.dtype is DType.U8:
        return None
    return redefine(op, "abs", inner.operands[0])


def not_of_equality(op: Op, rewriter: Rewriter) -> Replacement | None:
    """not (x == y) = (x != y); not (x != y) = (x == y)

    Not for an order such as x < y: nan makes both x < y and x >= y false.
    """
    for kind, opposite in (("eq", "ne"), ("ne", "eq")):
        if inner := rewriter.defining_op(op.operands[0], kind):
            return redefine(op, opposite, *inner.operands)
    return None


def repeated_bound(op: Op, rewriter: Rewriter) -> Replacement | None:
    """max(max(x, y), y) = max(x, y); max(x, max(x, y)) = max(x, y); the same for min"""
    for side in (0, 1):
        nested, bound = op.operands[side], op.operands[1 - side]
        inner = rewriter.defining_op(nested, op.kind)
        if inner and _same_operand(inner.operands[1 - side], bound):
            return rewriter.legal_replacement(op, nested)
    return None


def equal_operands(op: Op, rewriter: Rewriter) -> Replacement | None:
    """max(x, x) = x; min(x, x) = x; x & x = x; x | x = x; x and x = x; x or x = x

    where(c, x, x) = x
    """
    *_, x, y = op.operands
    return rewriter.legal_replacement(op, x) if x is y else None


def where_of_not(op: Op, rewriter: Rewriter) -> Replacement | None:
    """where(not c, x, y) = where(c, y, x), if c is boolean"""
    c, x, y = op.operands
    inner = rewriter.defining_op(c, "logical_not")
    if inner is None or inner.inputs[0].dtype is not DType.BOOL:
        return None
    return redefine(op, "where", inner.operands[0], y, x, **dict(op.attrs))


def pow_constant(op: Op, rewriter: Rewriter) -> Replacement | None:
    """x**2 = x * x; x**3 = x * x * x; x**0.5 = sqrt(x); x**-0.5 = rsqrt(x); x**-1 = 1 / x

    These are the formulas of PyTorch's CPU kernel. The cube is excluded in half precision, where
    x * x would be rounded. The last three are excluded in fp16, where PyTorch calls pow:
    pow(-0.0, 0.5) is 0.0, but sqrt(-0.0) is -0.0.
    """
    x, c = op.operands
    if not isinstance(x, Value) or not isinstance(c, Scalar):
        return None
    if _is_constant(c, 2):
        return redefine(op, "mul", x, x)
    if _is_constant(c, 3) and not x.dtype.is_reduced_float:
        square = rewriter.make_op("mul", (x, x), like=op)
        return (square, *redefine(op, "mul", square.result, x))
    if op.result.dtype not in (DType.F64, DType.F32, DType.BF16):
        return None
    for exponent, kind in ((0.5, "sqrt"), (-0.5, "rsqrt"), (-1, "reciprocal")):
        if _is_constant(c, exponent):
            return redefine(op, kind, x)
    return None


def convert_of_convert(op: Op, rewriter: Rewriter) -> Replacement | None:
    """to(to(x, wide), t) = to(x, t), if wide represents every value of x's type

    If wide is a float and t an integer, t must represent them too: the result of an out-of-range
    conversion depends on the float's width.
    """
    inner = rewriter.defining_op(op.operands[0], "convert")
    if inner is None:
        return None
    x, wide, to = inner.inputs[0], inner.result.dtype, op.result.dtype
    if not _represents_all(wide, x.dtype):
        return None
    if wide.is_float and to.is_int and not _represents_all(to, x.dtype):
        return None
    return redefine(op, "convert", x, **dict(op.attrs))


def extremum_of_one_element(op: Op, rewriter: Rewriter) -> Replacement | None:
    """amax(x, dims) = reshape(x), if all dims have extent 1 and the result is private; also amin"""
    x = op.inputs[0]
    if x.dtype is not op.result.dtype or not rewriter.is_private(op.result):
        return None
    if any(x.shape[d] != 1 for d in op.ints("dims")):
        return None
    return redefine(op, "reshape", x, shape=op.result.shape)


def gather_in_order(op: Op, rewriter: Rewriter) -> Replacement | None:
    """take(x, iota()) = x, if the index is the position of each element of x"""
    x, index = op.inputs
    source = rewriter.defining_op(index, "iota")
    if source is None or (source.attr("start"), source.attr("step")) != (0, 1):
        return None
    is_whole = op.ints("dims") == (-1,) and index.shape == x.shape
    return rewriter.legal_replacement(op, x) if is_whole else None


def reversed_scan(op: Op, rewriter: Rewriter) -> Replacement | None:
    """flip(scan(flip(x))) = scan(x) from the end, along the scan's dimension"""
    scanned = rewriter.producer.get(op.inputs[0])
    if scanned is None or OPS[scanned.kind].pattern is not Pattern.SCAN:
        return None
    dim, flipped = scanned.int("dim"), rewriter.defining_op(scanned.operands[0], "slice")
    if not _reverses(op, dim) or flipped is None or not _reverses(flipped, dim):
        return None
    reverse = not scanned.attr("reverse")
    return redefine(op, scanned.kind, flipped.operands[0], dim=dim, reverse=reverse)


def _reverses(op: Op, dim: int) -> bool:
    """Whether a slice reverses one dimension and takes all others."""
    extent = op.result.shape[dim]
    steps = tuple(-1 if d == dim else 1 for d in range(len(op.result.shape)))
    starts = tuple(extent - 1 if d == dim else 0 for d in range(len(op.result.shape)))
    same = op.result.shape == op.inputs[0].shape
    return same and op.ints("step") == steps and op.dims("start") == starts


def _constant_last(op: Op) -> tuple[Operand, Operand]:
    x, c = op.operands
    return (c, x) if isinstance(x, Scalar) and op.kind in COMMUTATIVE else (x, c)


def _is_constant(x: Operand, number: int | float) -> bool:
    """Whether an operand is this constant, with this sign; 0 equals 0.0, not -0.0 or False."""
    if not isinstance(x, Scalar) or not isinstance(x.value, (int, float)) or x.value != number:
        return False
    same_kind = isinstance(x.value, bool) == isinstance(number, bool)
    return same_kind and math.copysign(1, x.value) == math.copysign(1, number)


def _same_operand(a: Operand, b: Operand) -> bool:
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        return a.key == b.key
    return a is b


def _represents_all(wide: DType, dtype: DType) -> bool:
    return wide is dtype or wide in _WIDER.get(dtype, ())


def _is_numeric(op: Op) -> bool:
    return op.result.dtype.is_float or op.result.dtype.is_int


# 2**k and 2**-k are normal numbers of the type for every k up to this one.
_MAX_EXPONENT = {DType.F64: 1022, DType.F32: 126, DType.BF16: 126, DType.F16: 14}

_NEUTRAL = {
    "mul": 1,
    "div": 1,
    "pow": 1,
    "add": -0.0,
    "sub": 0,
    "logical_and": True,
    "logical_or": False,
}

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

RULES: dict[str, tuple[RewriteRule, ...]] = {
    "mul": (neutral_constant, mul_minus_one, mul_of_bool, mul_neg_neg),
    "div": (neutral_constant, div_power_of_two),
    "add": (neutral_constant, add_neg),
    "sub": (neutral_constant, sub_neg),
    **dict.fromkeys(("neg", "bitwise_not"), (involution,)),
    "logical_not": (involution, not_of_equality),
    **dict.fromkeys(("logical_and", "logical_or"), (equal_operands, neutral_constant)),
    **dict.fromkeys(("bitwise_and", "bitwise_or"), (equal_operands,)),
    "abs": (abs_abs, abs_neg),
    **dict.fromkeys(("maximum", "minimum"), (equal_operands, repeated_bound)),
    "where": (equal_operands, where_of_not),
    "pow": (neutral_constant, pow_constant),
    "convert": (identity, convert_of_convert),
    **dict.fromkeys(("amax", "amin"), (extremum_of_one_element,)),
    "take": (gather_in_order,),
    "slice": (reversed_scan,),
}
