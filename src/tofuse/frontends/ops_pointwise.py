"""Elementwise ops: each a row that says how it promotes and what it is in the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tofuse.capture.lower.builder import Builder, Refused, scalar
from tofuse.frontends.datatypes import DataType
from tofuse.frontends.lowering import Given, Item, Lowering, Node, show
from tofuse.frontends.scalars import fold
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Operand, Scalar, Value
from tofuse.ir.types import DType
from tofuse.ops.powers import is_product, products_of


@dataclass(frozen=True)
class Emitter:
    """Appends ops of one shape; `dtype` is that of the operands."""

    build: Builder
    shape: tuple[Dim, ...]
    dtype: DType

    def __call__(self, kind: str, *operands: Operand) -> Value:
        if not any(isinstance(x, Value) for x in operands):
            first = operands[0]
            assert isinstance(first, Scalar)
            operands = (self.full(first), *operands[1:])
        return self.build.emit(kind, operands, {})

    def full(self, x: Scalar) -> Value:
        return self.build.full(self.shape, x, self.dtype)

    def value(self, x: Operand) -> Value:
        return x if isinstance(x, Value) else self.full(x)

    def number(self, x: float) -> Scalar:
        return scalar(x, self.dtype)

    def where(self, test: Value, yes: Operand, no: Operand) -> Value:
        constant = isinstance(yes, Scalar) and isinstance(no, Scalar)
        attrs = {"dtype": self.dtype} if constant else {}
        return self.build.emit("where", (test, yes, no), dict(attrs))

    def bool(self, x: Operand) -> Operand:
        if isinstance(x, Value):
            return self.build.convert(x, DType.BOOL)
        return Scalar(bool(x.value)) if isinstance(x.value, (bool, int, float)) else x


Emit = Callable[..., Value]


@dataclass(frozen=True)
class Row:
    """An elementwise op. `takes` names the categories of numbers it accepts."""

    emit: Emit
    aten: str  # PyTorch's operator for types the graph does not know, "" where there is none
    to_float: bool = False
    to_bool: bool = False
    takes: str = "bif"  # categories: bools, integers, floats, complex numbers
    extra: str = ""  # text of further arguments of `aten`


def apply(low: Lowering, name: str, row: Row, *given: Given) -> Item:
    """One elementwise op on tensors and numbers that broadcast to one shape."""
    items = [low.operand(x) for x in given]
    dtype = low.promoted(items, to_float=row.to_float)
    known = dtype.ir is not DType.OTHER
    if "bifc"[dtype.category] not in row.takes or not (known or row.aten):
        raise low.fail(f"it does not take {dtype.value} operands")
    out = DataType.Bool if row.to_bool else dtype
    if (folded := fold(low, name, items, out)) is not None:
        return folded
    shape = common_shape(low, items)
    scalars = all(not isinstance(x, Node) or x.scalar for x in items)
    return low.node(_emit(low, row, items, shape, dtype, out), out, scalar=scalars)


def common_shape(low: Lowering, items: Sequence[Item]) -> tuple[Dim, ...]:
    """The shape that operands broadcast to: an extent of 1 stretches, others must be equal."""
    tensors = [x for x in items if isinstance(x, Node) and x.rank]
    if not tensors:
        return ()
    rank = tensors[0].rank
    for x in tensors[1:]:
        if x.rank != rank:
            ranks = " and ".join(str(t.rank) for t in tensors)
            raise low.fail(
                f"its operands have ranks {ranks}; bring them to one rank with "
                "broadcast or broadcast_in_dim"
            )
    for d in range(rank):
        wide = [x for x in tensors if x.shape[d] != 1]
        for x in wide[1:]:
            if x.shape[d] != 1 and wide[0].shape[d] != 1:
                shapes = " and ".join(show(t.shape) for t in tensors)
                low.equal(wide[0].shape[d], x.shape[d], f"shapes {shapes} at dimension {d}")
    return tuple(next((x.shape[d] for x in tensors if x.shape[d] != 1), 1) for d in range(rank))


def spread(low: Lowering, x: Value, shape: tuple[Dim, ...], dtype: DataType) -> Value:
    """A tensor broadcast to a shape that `common_shape` found."""
    if x.shape and x.shape != shape:
        here = tuple(a if a == 1 else b for a, b in zip(x.shape, shape, strict=True))
        x = low.claim(x, here, dtype)
    return low.build.expand(x, shape)


def _emit(
    low: Lowering,
    row: Row,
    items: Sequence[Item],
    shape: tuple[Dim, ...],
    dtype: DataType,
    out: DataType,
) -> Value:
    mark, count = len(low.build.ops), low.build.count
    if dtype.ir is not DType.OTHER:
        prepared = [operand_of(low, x, shape, dtype) for x in items]
        try:
            made = row.emit(Emitter(low.build, shape, dtype.ir), *prepared)
            return low.build.copy(made) if made in prepared else made
        except Refused as e:
            if not row.aten:
                raise low.fail(str(e)) from None
            del low.build.ops[mark:]
            low.build.count = count
    values = tuple(spread_any(low, low.value_of(x, dtype), shape, dtype) for x in items)
    operands = tuple(dict.fromkeys(values))
    text = ", ".join([f"${operands.index(v)}" for v in values])
    return low.opaque(row.aten, text + row.extra, operands, shape, out)


def spread_any(low: Lowering, x: Value, shape: tuple[Dim, ...], dtype: DataType) -> Value:
    """`spread`, but a 0-d tensor is left to PyTorch's own broadcasting."""
    return spread(low, x, shape, dtype) if x.shape else x


def operand_of(low: Lowering, x: Item, shape: tuple[Dim, ...], dtype: DataType) -> Operand:
    """A tensor of this type and shape, or a constant of this type."""
    if isinstance(x, Node):
        return spread(low, low.convert(x.value, x.dtype, dtype), shape, dtype)
    assert not isinstance(x.value, complex)
    return scalar(x.value, dtype.ir)


# -- what the rows are in the graph ----------------------------------------------------------------


def ir(kind: str) -> Emit:
    return lambda e, *xs: e(kind, *xs)


def on_bools(kind: str, bool_kind: str) -> Emit:
    """An op that on bools is a logical one."""
    return lambda e, *xs: e(bool_kind if e.dtype is DType.BOOL else kind, *xs)


def floats_only(kind: str) -> Emit:
    """Rounding: integers are whole already."""
    return lambda e, x: e(kind, x) if e.dtype.is_float else e.value(x)


def comparison(kind: str) -> Emit:
    def emit(e: Emitter, a: Operand, b: Operand) -> Value:
        if e.dtype is DType.BOOL and kind not in ("eq", "ne"):
            order = Emitter(e.build, e.shape, DType.U8)
            a, b = (e.build.uniform(x, e.shape, DType.U8) for x in (a, b))
            return order(kind, a, b)
        return e(kind, a, b)

    return emit


def logical(kind: str) -> Emit:
    def emit(e: Emitter, *xs: Operand) -> Value:
        return Emitter(e.build, e.shape, DType.BOOL)(kind, *map(e.bool, xs))

    return emit


def division(kind: str, float_kind: str) -> Emit:
    """Of integers, by a constant that cannot fail; PyTorch divides by others."""

    def emit(e: Emitter, a: Operand, b: Operand) -> Value:
        if e.dtype.is_float:
            return e(float_kind, a, b)
        if not isinstance(b, Scalar) or not isinstance(b.value, int) or b.value in (0, -1, False):
            raise Refused("an integer division that may fail")
        return e(kind, a, b)

    return emit


def shift(kind: str) -> Emit:
    def emit(e: Emitter, a: Operand, b: Operand) -> Value:
        if not isinstance(b, Scalar) or not isinstance(b.value, int):
            raise Refused("a shift by a tensor")
        if not 0 <= b.value < 8 * e.dtype.itemsize:
            raise Refused("a shift beyond the width")
        return e(kind, a, b)

    return emit


def power(e: Emitter, a: Operand, b: Operand) -> Value:
    """Small constant exponents are products and roots, as in ATen."""
    exponent = b.value if isinstance(b, Scalar) else None
    if exponent == 1:
        return e.value(a)
    if isinstance(exponent, int | float) and is_product(exponent, e.dtype):
        made: list[Operand] = [a]
        for x, y in products_of(int(abs(exponent))):
            made.append(e("mul", made[x], made[y]))
        return e.value(made[-1]) if exponent > 0 else e("reciprocal", made[-1])
    if not e.dtype.is_float:
        raise Refused("a power of integers")
    if isinstance(exponent, float) and exponent in ROOTS:
        return e(ROOTS[exponent], a)
    return e("pow", a, b)


def test(kind: str) -> Emit:
    """isnan and isinf: no integer is either."""

    def emit(e: Emitter, x: Operand) -> Value:
        if e.dtype.is_float:
            return e(kind, x)
        return e.build.full(e.shape, Scalar(False), DType.BOOL)

    return emit


def infinite(sign: float) -> Emit:
    def emit(e: Emitter, x: Operand) -> Value:
        if e.dtype.is_float:
            return e("eq", x, Scalar(sign * math.inf))
        return e.build.full(e.shape, Scalar(False), DType.BOOL)

    return emit


def finite(e: Emitter, x: Operand) -> Value:
    if e.dtype.is_float:
        return e("lt", e("abs", x), Scalar(math.inf))
    return e.build.full(e.shape, Scalar(True), DType.BOOL)


def signbit(e: Emitter, x: Operand) -> Value:
    if e.dtype.is_float:
        return e("lt", e("copysign", Scalar(1.0), e.value(x)), Scalar(0.0))
    if e.dtype is DType.BOOL:
        return e.build.full(e.shape, Scalar(False), DType.BOOL)
    return e("lt", x, Scalar(0))


def refuse(*_: Emitter | Operand) -> Value:
    """No op of the graph: PyTorch runs it."""
    raise Refused("an operator that only PyTorch has")


def lerp(e: Emitter, start: Operand, end: Operand, weight: Operand) -> Value:
    """From both ends, as in ATen, so that a weight of 1 gives `end` exactly."""
    length = e("sub", end, start)
    near = e("add", start, e("mul", weight, length))
    far = e("sub", end, e("mul", length, e("sub", e.number(1), e.value(weight))))
    return e.where(e("lt", e("abs", weight), e.number(0.5)), near, far)


def addcmul(e: Emitter, a: Operand, b: Operand, c: Operand, value: Operand) -> Value:
    return e("add", a, e("mul", e("mul", value, b), c))


def threshold(e: Emitter, x: Operand, bound: Operand, value: Operand) -> Value:
    return e.where(e("le", x, bound), value, x)


def scaled(kind: str) -> Emit:
    return lambda e, a, b, alpha: e(kind, a, e("mul", b, alpha))


MATH = (
    "acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 erf erfc log log10 log1p log2 "
    "reciprocal rsqrt sigmoid sin sinh sqrt tan tanh"
)

ROOTS = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}

UNARY: dict[str, Row] = {
    **{k: Row(ir(k), f"aten.{k}.default", True, takes="bifc") for k in MATH.split()},
    **{k: Row(floats_only(k), "") for k in ("ceil", "floor", "round", "trunc")},
    "abs": Row(lambda e, x: e.value(x) if e.dtype is DType.BOOL else e("abs", x), ""),
    "neg": Row(ir("neg"), "aten.neg.default", takes="ifc"),
    "sign": Row(lambda e, x: e.value(x) if e.dtype is DType.BOOL else e("sign", x), ""),
    "frac": Row(lambda e, x: e("sub", x, e("trunc", x)), "", to_float=True),
    "relu": Row(lambda e, x: e("maximum", x, e.number(0)), "", takes="if"),
    "silu": Row(lambda e, x: e("mul", x, e("sigmoid", x)), "aten.silu.default", True, takes="bifc"),
    "erfinv": Row(refuse, "aten.erfinv.default", to_float=True),
    "lgamma": Row(ir("lgamma"), "aten.lgamma.default", to_float=True),
    "logical_not": Row(
        logical("logical_not"), "aten.logical_not.default", to_bool=True, takes="bifc"
    ),
    "bitwise_not": Row(on_bools("bitwise_not", "logical_not"), "", takes="bi"),
    "signbit": Row(signbit, "", to_bool=True),
    "isfinite": Row(finite, "aten.isfinite.default", to_bool=True, takes="bifc"),
    "isinf": Row(test("isinf"), "aten.isinf.default", to_bool=True, takes="bifc"),
    "isnan": Row(test("isnan"), "aten.isnan.default", to_bool=True, takes="bifc"),
    "isneginf": Row(infinite(-1.0), "", to_bool=True),
    "isposinf": Row(infinite(1.0), "", to_bool=True),
    "isreal": Row(
        lambda e, x: e.build.full(e.shape, Scalar(True), DType.BOOL),
        "aten.isreal.default",
        to_bool=True,
        takes="bifc",
    ),
}

COMPARE = {
    k: Row(comparison(k), f"aten.{k}.Tensor", to_bool=True) for k in ["lt", "le", "gt", "ge"]
}

BINARY: dict[str, Row] = {
    "add": Row(on_bools("add", "logical_or"), "aten.add.Tensor", takes="bifc"),
    "sub": Row(ir("sub"), "aten.sub.Tensor", takes="ifc"),
    "mul": Row(on_bools("mul", "logical_and"), "aten.mul.Tensor", takes="bifc"),
    "div": Row(
        division("truncdiv", "div"),
        "aten.div.Tensor_mode",
        takes="if",
        extra=", rounding_mode='trunc'",
    ),
    "truediv": Row(ir("div"), "aten.div.Tensor", True, takes="bifc"),
    "fmod": Row(division("fmod", "fmod"), "aten.fmod.Tensor", takes="if"),
    "mod": Row(division("fmod", "fmod"), "aten.fmod.Tensor", takes="if"),
    "remainder": Row(division("remainder", "remainder"), "aten.remainder.Tensor", takes="if"),
    "pow": Row(power, "aten.pow.Tensor_Tensor", takes="bifc"),
    "atan2": Row(ir("atan2"), "", to_float=True),
    "nextafter": Row(refuse, "aten.nextafter.default", takes="f"),
    "gcd": Row(refuse, "aten.gcd.default", takes="i"),
    "maximum": Row(on_bools("maximum", "logical_or"), ""),
    "minimum": Row(on_bools("minimum", "logical_and"), ""),
    "eq": Row(comparison("eq"), "aten.eq.Tensor", to_bool=True, takes="bifc"),
    "ne": Row(comparison("ne"), "aten.ne.Tensor", to_bool=True, takes="bifc"),
    **COMPARE,
    "logical_and": Row(
        logical("logical_and"), "aten.logical_and.default", to_bool=True, takes="bifc"
    ),
    "logical_or": Row(logical("logical_or"), "aten.logical_or.default", to_bool=True, takes="bifc"),
    **{
        f"bitwise_{k}": Row(on_bools(f"bitwise_{k}", f"logical_{k}"), "", takes="bi")
        for k in ("and", "or", "xor")
    },
    "bitwise_left_shift": Row(shift("shift_left"), "aten.bitwise_left_shift.Tensor", takes="i"),
    "bitwise_right_shift": Row(shift("shift_right"), "aten.bitwise_right_shift.Tensor", takes="i"),
}

OTHERS: dict[str, Row] = {
    "lerp": Row(lerp, "", to_float=True),
    "addcmul": Row(addcmul, "", takes="if"),
    "threshold": Row(threshold, ""),
    "add_alpha": Row(scaled("add"), "", takes="if"),
    "sub_alpha": Row(scaled("sub"), "", takes="if"),
}
