"""The table of elementwise ops: for each its type promotion and its emission as graph ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tofuse.capture.lower.builder import Builder, Unsupported, typed_scalar
from tofuse.frontends.datatypes import DataType
from tofuse.frontends.items import (
    Item,
    Node,
    Number,
    OperandLike,
    is_constant,
    is_scalar,
    show_shape,
)
from tofuse.frontends.lowering import Lowering
from tofuse.frontends.scalar_folding import fold_scalars
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Graph, Operand, Scalar, Value
from tofuse.ir.types import DType, TensorType
from tofuse.ops.powers import ROOTS, is_repeated_product, repeated_product
from tofuse.ops.reference import run_graph


@dataclass(frozen=True)
class Emitter:
    """Appends ops on operands that are brought to one shape and dtype."""

    builder: Builder
    shape: tuple[Dim, ...]
    dtype: DType

    def __call__(self, kind: str, *operands: Operand) -> Value:
        if not any(isinstance(x, Value) for x in operands):
            operands = (self.value(operands[0]), *operands[1:])
        return self.builder.elementwise(kind, *operands, shape=self.shape, dtype=self.dtype)

    def value(self, x: Operand) -> Value:
        return x if isinstance(x, Value) else self.builder.full(self.shape, x, self.dtype)

    def where(self, test: Value, yes: Operand, no: Operand) -> Value:
        return self.builder.where(test, yes, no, TensorType(self.shape, self.dtype))

    def in_type(self, dtype: DType) -> Emitter:
        return Emitter(self.builder, self.shape, dtype)


Emit = Callable[..., Value]


@dataclass(frozen=True)
class ElementwiseOp:
    """An elementwise op; `categories` lists the types that it accepts."""

    emit: Emit
    pytorch_op: str  # for types that the IR lacks; "" if there is none
    to_float: bool = False
    to_bool: bool = False
    categories: str = "bif"  # of the operands: bool, integer, float, complex
    rounding_mode: str = ""  # of `pytorch_op`, if it takes one


def elementwise_node(low: Lowering, name: str, *arguments: OperandLike) -> Node:
    """Append an elementwise op with a tensor among its arguments."""
    result = elementwise(low, name, *arguments)
    assert isinstance(result, Node)
    return result


def elementwise(low: Lowering, name: str, *arguments: OperandLike) -> Item:
    """Append an elementwise op of the table on tensors and numbers, broadcast to one shape."""
    op = ELEMENTWISE[name]
    items = [low.operand(x) for x in arguments]
    dtype = low.promoted_type(items, to_float=op.to_float)
    known = dtype.ir is not DType.OTHER
    if "bifc"[dtype.category] not in op.categories or not (known or op.pytorch_op):
        raise low.error(f"it does not take {dtype.value} operands")
    result_type = DataType.Bool if op.to_bool else dtype
    if (folded := fold_scalars(low, name, items, result_type)) is not None:
        return folded
    if all(map(is_constant, items)):
        return _evaluate(low, op, items, dtype, result_type)
    shape = broadcast_shape(low, items)
    scalars = all(map(is_scalar, items))
    return Node(_emit(low, op, items, shape, dtype, result_type), result_type, scalar=scalars)


def _evaluate(
    low: Lowering, op: ElementwiseOp, items: Sequence[Item], dtype: DataType, result_type: DataType
) -> Number:
    """Return the value of an op on constants, computed in double precision instead of Float."""
    op_count, value_count = len(low.builder.ops), low.builder.value_count
    wide = DataType.Double if dtype is DataType.Float else dtype
    value = _emit(low, op, items, (), wide, DataType.Bool if op.to_bool else wide)
    graph = Graph((), tuple(low.builder.ops[op_count:]), (value,), low.op_name)
    del low.builder.ops[op_count:]
    low.builder.value_count = value_count
    try:
        return Number(run_graph(graph, {}, {})[value].item(), result_type)
    except RuntimeError as e:  # a division by zero
        raise low.error(str(e)) from None


def broadcast_shape(low: Lowering, items: Sequence[Item]) -> tuple[Dim, ...]:
    """Return the shape that operands broadcast to: aligned on the right, sizes 1 or equal."""
    given = [x.shape for x in items if isinstance(x, Node) and x.rank]
    rank = max(map(len, given), default=0)
    shapes = [of_rank(shape, rank) for shape in given]
    for d in range(rank):
        wide = [shape[d] for shape in shapes if shape[d] != 1]
        for size in wide[1:]:
            shown = " and ".join(map(show_shape, given))
            low.require_equal(wide[0], size, f"shapes {shown} at dimension {d}")
    return tuple(next((s[d] for s in shapes if s[d] != 1), 1) for d in range(rank))


def of_rank(shape: tuple[Dim, ...], rank: int) -> tuple[Dim, ...]:
    """Return a shape with sizes of 1 inserted on the left."""
    return (1,) * (rank - len(shape)) + shape


def broadcast_to(low: Lowering, x: Value, shape: tuple[Dim, ...], dtype: DataType) -> Value:
    """Broadcast a tensor to a shape that `broadcast_shape` returned."""
    if x.shape and x.shape != shape:
        sizes = of_rank(x.shape, len(shape))
        resolved = tuple(a if a == 1 else b for a, b in zip(sizes, shape, strict=True))
        x = low.checked_reshape(x, resolved, dtype)
    return low.builder.expand(x, shape)


def _emit(
    low: Lowering,
    op: ElementwiseOp,
    items: Sequence[Item],
    shape: tuple[Dim, ...],
    dtype: DataType,
    result_type: DataType,
) -> Value:
    op_count, value_count = len(low.builder.ops), low.builder.value_count
    if dtype.ir is not DType.OTHER:
        prepared = [typed_operand(low, x, shape, dtype) for x in items]
        try:
            made = op.emit(Emitter(low.builder, shape, dtype.ir), *prepared)
            return low.builder.copy(made) if made in prepared else made
        except Unsupported as e:
            if not op.pytorch_op:
                raise low.error(str(e)) from None
            del low.builder.ops[op_count:]
            low.builder.value_count = value_count
    values = [low.value_of(x, dtype) for x in items]
    # PyTorch broadcasts a 0-d tensor itself
    values = [broadcast_to(low, x, shape, dtype) if x.shape else x for x in values]
    call = partial(low.call, op.pytorch_op, values, shape, result_type)
    return (call(rounding_mode=op.rounding_mode) if op.rounding_mode else call()).value


def typed_operand(low: Lowering, x: Item, shape: tuple[Dim, ...], dtype: DataType) -> Operand:
    """Convert an item to a tensor of this type and shape, or to a constant of this type."""
    if isinstance(x, Node):
        return broadcast_to(low, low.convert(x.value, x.dtype, dtype), shape, dtype)
    assert not isinstance(x.value, complex)
    return typed_scalar(x.value, dtype.ir)


# -- emitters -------------------------------------------------------------------------------------


def same_kind(kind: str) -> Emit:
    return lambda e, *xs: e(kind, *xs)


def on_bools(kind: str, bool_kind: str) -> Emit:
    """Emit a logical op for bools."""
    return lambda e, *xs: e(bool_kind if e.dtype is DType.BOOL else kind, *xs)


def floats_only(kind: str) -> Emit:
    """Emit a rounding op, which leaves integers unchanged."""
    return lambda e, x: e(kind, x) if e.dtype.is_float else e.value(x)


def comparison(kind: str) -> Emit:
    def emit(e: Emitter, a: Operand, b: Operand) -> Value:
        if e.dtype is DType.BOOL and kind not in ("eq", "ne"):
            return e.in_type(DType.U8)(kind, a, b)
        return e(kind, a, b)

    return emit


def logical(kind: str) -> Emit:
    return lambda e, *xs: e.in_type(DType.BOOL)(kind, *xs)


def division(kind: str, float_kind: str) -> Emit:
    """Emit a division; integers only by a constant other than 0 and -1, else PyTorch divides."""

    def emit(e: Emitter, a: Operand, b: Operand) -> Value:
        if e.dtype.is_float:
            return e(float_kind, a, b)
        if not isinstance(b, Scalar) or not isinstance(b.value, int) or b.value in (0, -1, False):
            raise Unsupported("an integer division that may fail")
        return e(kind, a, b)

    return emit


def shift(kind: str) -> Emit:
    def emit(e: Emitter, a: Operand, b: Operand) -> Value:
        if not isinstance(b, Scalar) or not isinstance(b.value, int):
            raise Unsupported("a shift by a tensor")
        if not 0 <= b.value < 8 * e.dtype.itemsize:
            raise Unsupported("a shift beyond the width")
        return e(kind, a, b)

    return emit


def power(e: Emitter, a: Operand, b: Operand) -> Value:
    """Emit a power; small constant exponents become products and roots, as in ATen."""
    exponent = b.value if isinstance(b, Scalar) else None
    if exponent == 1:
        return e.value(a)
    if isinstance(exponent, int | float) and is_repeated_product(exponent, e.dtype):
        product = repeated_product(a, int(abs(exponent)), partial(e, "mul"))
        return e.value(product) if exponent > 0 else e("reciprocal", product)
    if not e.dtype.is_float:
        raise Unsupported("a power of integers")
    if isinstance(exponent, float) and exponent in ROOTS:
        return e(ROOTS[exponent], a)
    return e("pow", a, b)


def float_test(test: Emit, otherwise: bool = False) -> Emit:
    """Emit a test of floats; other types give a constant."""

    def emit(e: Emitter, x: Operand) -> Value:
        if e.dtype.is_float:
            return test(e, x)
        return e.builder.full(e.shape, Scalar(otherwise), DType.BOOL)

    return emit


def equals(number: float) -> Emit:
    return lambda e, x: e("eq", x, Scalar(number))


def signbit(e: Emitter, x: Operand) -> Value:
    if e.dtype.is_float:
        return e("lt", e("copysign", Scalar(1.0), x), Scalar(0.0))
    if e.dtype is DType.BOOL:
        return e.builder.full(e.shape, Scalar(False), DType.BOOL)
    return e("lt", x, Scalar(0))


def pytorch_only(*_: Emitter | Operand) -> Value:
    """Leave the op to PyTorch."""
    raise Unsupported("an operator that only PyTorch has")


def lerp(e: Emitter, start: Operand, end: Operand, weight: Operand) -> Value:
    """Interpolate from the nearer end, as ATen does, so that a weight of 1 gives `end` exactly."""
    length = e("sub", end, start)
    near = e("add", start, e("mul", weight, length))
    far = e("sub", end, e("mul", length, e("sub", Scalar(1.0), weight)))
    return e.where(e("lt", e("abs", weight), Scalar(0.5)), near, far)


def addcmul(e: Emitter, arg1: Operand, arg2: Operand, arg3: Operand, value: Operand) -> Value:
    """Return arg1 + value * arg2 * arg3."""
    return e("add", arg1, e("mul", e("mul", value, arg2), arg3))


def threshold(e: Emitter, x: Operand, bound: Operand, value: Operand) -> Value:
    """Return `value` where the operand is at most `threshold`, else the operand."""
    return e.where(e("le", x, bound), value, x)


def predicate(emit: Emit, pytorch_op: str) -> ElementwiseOp:
    """Return an op on all types whose result is a bool."""
    return ElementwiseOp(emit, pytorch_op, to_bool=True, categories="bifc")


def scaled_second(kind: str) -> Emit:
    return lambda e, a, b, alpha: e(kind, a, e("mul", b, alpha))


MATH = (
    "acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 erf erfc log log10 log1p log2 "
    "reciprocal rsqrt sigmoid sin sinh sqrt tan tanh"
)


UNARY: dict[str, ElementwiseOp] = {
    **{
        k: ElementwiseOp(same_kind(k), f"aten.{k}.default", True, categories="bifc")
        for k in MATH.split()
    },
    **{k: ElementwiseOp(floats_only(k), "") for k in ("ceil", "floor", "round", "trunc")},
    "abs": ElementwiseOp(lambda e, x: e.value(x) if e.dtype is DType.BOOL else e("abs", x), ""),
    "neg": ElementwiseOp(same_kind("neg"), "aten.neg.default", categories="ifc"),
    "sign": ElementwiseOp(lambda e, x: e.value(x) if e.dtype is DType.BOOL else e("sign", x), ""),
    "frac": ElementwiseOp(lambda e, x: e("sub", x, e("trunc", x)), "", to_float=True),
    "relu": ElementwiseOp(lambda e, x: e("maximum", x, Scalar(0)), "", categories="if"),
    "silu": ElementwiseOp(
        lambda e, x: e("mul", x, e("sigmoid", x)), "aten.silu.default", True, categories="bifc"
    ),
    "erfinv": ElementwiseOp(pytorch_only, "aten.erfinv.default", to_float=True),
    "lgamma": ElementwiseOp(same_kind("lgamma"), "aten.lgamma.default", to_float=True),
    "logical_not": predicate(logical("logical_not"), "aten.logical_not.default"),
    "bitwise_not": ElementwiseOp(on_bools("bitwise_not", "logical_not"), "", categories="bi"),
    "signbit": ElementwiseOp(signbit, "", to_bool=True),
    "isfinite": predicate(
        float_test(lambda e, x: e("lt", e("abs", x), Scalar(math.inf)), otherwise=True),
        "aten.isfinite.default",
    ),
    "isinf": predicate(float_test(same_kind("isinf")), "aten.isinf.default"),
    "isnan": predicate(float_test(same_kind("isnan")), "aten.isnan.default"),
    "isneginf": ElementwiseOp(float_test(equals(-math.inf)), "", to_bool=True),
    "isposinf": ElementwiseOp(float_test(equals(math.inf)), "", to_bool=True),
    "isreal": predicate(
        lambda e, x: e.builder.full(e.shape, Scalar(True), DType.BOOL), "aten.isreal.default"
    ),
}

BINARY: dict[str, ElementwiseOp] = {
    "add": ElementwiseOp(on_bools("add", "logical_or"), "aten.add.Tensor", categories="bifc"),
    "sub": ElementwiseOp(same_kind("sub"), "aten.sub.Tensor", categories="ifc"),
    "mul": ElementwiseOp(on_bools("mul", "logical_and"), "aten.mul.Tensor", categories="bifc"),
    "div": ElementwiseOp(
        division("truncdiv", "div"),
        "aten.div.Tensor_mode",
        categories="if",
        rounding_mode="trunc",
    ),
    "truediv": ElementwiseOp(same_kind("div"), "aten.div.Tensor", True, categories="bifc"),
    **{
        k: ElementwiseOp(division(kind, kind), f"aten.{kind}.Tensor", categories="if")
        for k, kind in (("fmod", "fmod"), ("mod", "fmod"), ("remainder", "remainder"))
    },
    "pow": ElementwiseOp(power, "aten.pow.Tensor_Tensor", categories="bifc"),
    "atan2": ElementwiseOp(same_kind("atan2"), "", to_float=True),
    "nextafter": ElementwiseOp(pytorch_only, "aten.nextafter.default", categories="f"),
    "gcd": ElementwiseOp(pytorch_only, "aten.gcd.default", categories="i"),
    "maximum": ElementwiseOp(on_bools("maximum", "logical_or"), ""),
    "minimum": ElementwiseOp(on_bools("minimum", "logical_and"), ""),
    **{k: predicate(comparison(k), f"aten.{k}.Tensor") for k in ("eq", "ne")},
    **{
        k: ElementwiseOp(comparison(k), f"aten.{k}.Tensor", to_bool=True)
        for k in ("lt", "le", "gt", "ge")
    },
    **{k: predicate(logical(k), f"aten.{k}.default") for k in ("logical_and", "logical_or")},
    **{
        f"bitwise_{k}": ElementwiseOp(on_bools(f"bitwise_{k}", f"logical_{k}"), "", categories="bi")
        for k in ("and", "or", "xor")
    },
    **{
        f"bitwise_{k}_shift": ElementwiseOp(
            shift(f"shift_{k}"), f"aten.bitwise_{k}_shift.Tensor", categories="i"
        )
        for k in ("left", "right")
    },
}

COMPOUND: dict[str, ElementwiseOp] = {
    "lerp": ElementwiseOp(lerp, "", to_float=True),
    "addcmul": ElementwiseOp(addcmul, "", categories="if"),
    "threshold": ElementwiseOp(threshold, ""),
    "add_alpha": ElementwiseOp(scaled_second("add"), "", categories="if"),
    "sub_alpha": ElementwiseOp(scaled_second("sub"), "", categories="if"),
}

ELEMENTWISE = {**UNARY, **BINARY, **COMPOUND}
