"""Rules for elementwise ATen ops; the table at the end names them all."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from tofuse.capture.fx.dtypes import dtype_of
from tofuse.capture.lower.builder import Builder, Refused
from tofuse.capture.lower.call import Call, Made, Rule
from tofuse.capture.lower.rules.composed import (
    COMPOSED,
    product,
    single,
    truncated,
)
from tofuse.ir.dims import SymDim
from tofuse.ir.graph import Operand, Scalar, Value
from tofuse.ir.types import DType
from tofuse.ops.powers import is_product, products_of
from tofuse.ops.reference import TO_TORCH


def same(kind: str, *names: str) -> Rule:
    """The IR op of this kind, computed in the result's dtype."""

    def rule(call: Call) -> Value:
        out = call.out
        operands = [call.operand(n) for n in names]
        return call.build.elementwise(kind, *operands, shape=out.shape, dtype=out.dtype)

    return rule


def no_bools(rule: Rule) -> Rule:
    """Leave bools to ATen, where they have another meaning or are an error."""

    def guarded(call: Call) -> Made:
        if call.out.dtype == DType.BOOL:
            raise Refused("bools")
        return rule(call)

    return guarded


def no_halves(rule: Rule) -> Rule:
    """Leave to ATen what depends on the spacing of 16-bit floats, which we compute in float32."""

    def guarded(call: Call) -> Made:
        if call.out.dtype.is_narrow:
            raise Refused("halves")
        return rule(call)

    return guarded


def on_elements(rule: Rule) -> Rule:
    """A number beside halves is a half itself, as in ATen's kernels of these ops for the CPU; in
    others, such as products, it is not rounded."""

    def rounded(call: Call) -> Made:
        types = {(v.dtype, v.type.device) for v in call.arguments.values() if isinstance(v, Value)}
        (dtype, device), *more = types
        if more or not dtype.is_narrow or device != "cpu":
            return rule(call)
        found = dict(call.arguments)
        for name in ("self", "other", "exponent", "alpha"):
            number = found.get(name)
            if isinstance(number, float):
                with unset_fake_temporarily():
                    found[name] = torch.tensor(number, dtype=TO_TORCH[dtype]).item()
        return rule(replace(call, arguments=found))

    return rounded


def rounding(kind: str) -> Rule:
    """floor, ceil, trunc and round leave integers as they are."""

    def rule(call: Call) -> Made:
        if call.out.dtype.is_float:
            return same(kind, "self")(call)
        return call.build.copy(call.tensor("self"))

    return rule


def on_bools(kind: str, bool_kind: str, *names: str) -> Rule:
    """An op that on bools is a logical one."""

    def rule(call: Call) -> Made:
        return same(bool_kind if call.out.dtype == DType.BOOL else kind, *names)(call)

    return rule


def comparison(kind: str) -> Rule:
    """Operands meet in their common dtype; order among bools is that of 0 and 1."""

    def rule(call: Call) -> Value:
        dtype = common_dtype(call, "self", "other")
        if dtype == DType.BOOL and kind not in ("eq", "ne"):
            dtype = DType.U8
        operands = [call.operand(n) for n in ("self", "other")]
        if dtype.is_int and not all(_holds(dtype, x) for x in operands):
            raise Refused("a constant that the dtype does not hold")
        return call.build.elementwise(kind, *operands, shape=call.out.shape, dtype=dtype)

    return rule


def logical(kind: str, *names: str) -> Rule:
    """Operands count as true where they are not zero."""

    def rule(call: Call) -> Value:
        operands = [call.operand(n) for n in names]
        return call.build.elementwise(kind, *operands, shape=call.out.shape, dtype=DType.BOOL)

    return rule


def test(kind: str) -> Rule:
    """isnan and isinf: no integer is either."""

    def rule(call: Call) -> Value:
        x = call.tensor("self")
        if not x.dtype.is_float:
            return call.build.full(x.shape, Scalar(False), DType.BOOL)
        return call.build.emit(kind, (x,), {})

    return rule


def scaled_sum(kind: str) -> Rule:
    """`self + alpha * other`, or minus."""

    def rule(call: Call) -> Value:
        out, other, alpha = call.out, call.operand("other"), call.number("alpha")
        if isinstance(alpha, SymDim):
            raise Refused("a multiple that is not fixed")
        if out.dtype == DType.BOOL and (kind, alpha) != ("add", 1):
            raise Refused("bools")
        dtype = out.dtype
        if alpha != 1:
            dtype = single(dtype)
            other = _times(call, other, alpha, dtype)
        final = "logical_or" if dtype == DType.BOOL else kind
        operands = (call.operand("self"), other)
        total = call.build.elementwise(final, *operands, shape=out.shape, dtype=dtype)
        return call.build.convert(total, out.dtype)

    return rule


def integral(rule: Rule) -> Rule:
    """Division with rounding: of floats, or of integers by a constant that is not 0 or -1."""

    def checked(call: Call) -> Made:
        dtype = call.out.dtype
        if not dtype.is_float:
            divisor = call.integer("other")
            if not dtype.is_int or divisor in (0, -1) or not _holds(dtype, Scalar(divisor)):
                raise Refused("an integer division that may fail")
        return rule(call)

    return checked


def shift(kind: str) -> Rule:
    """Of integers: past the width nothing is left but the sign."""

    def rule(call: Call) -> Made:
        amount = call.operand("other")
        width = call.out.dtype.itemsize * 8
        if not call.out.dtype.is_int:
            raise Refused("a shift of floats")
        known = amount.value if isinstance(amount, Scalar) else 0
        if not isinstance(known, int) or not 0 <= known < width:
            raise Refused("a shift beyond the width")
        return same(kind, "self", "other")(call)

    return rule


def divide(call: Call) -> Made:
    mode = call.arguments.get("rounding_mode")
    if not isinstance(mode, (str, type(None))) or mode not in DIVISIONS:
        raise Refused("an unknown rounding mode")
    return DIVISIONS[mode](call)


def multiply(call: Call) -> Made:
    if call.out.dtype == DType.BOOL:
        return same("logical_and", "self", "other")(call)
    return product("mul")(call)


def power(call: Call) -> Made:
    """Small constant exponents are products and roots, as in ATen; other powers need floats."""
    base, exponent, out, build = (
        call.operand("self"),
        call.operand("exponent"),
        call.out,
        call.build,
    )
    if isinstance(base, Value) and isinstance(exponent, Scalar) and out.dtype != DType.BOOL:
        x = build.expand(build.convert(base, out.dtype), out.shape)
        e = exponent.value
        if e == 0:
            return build.full(out.shape, Scalar(1), out.dtype)
        if e == 1:
            return build.copy(x)
        if out.dtype.is_float and e in ROOTS:
            return build.emit(ROOTS[e], (x,), {})
        if isinstance(e, int | float) and is_product(e, out.dtype):
            return _product(build, x, int(e))
    if not out.dtype.is_float:
        raise Refused("a power of integers")
    return same("pow", "self", "exponent")(call)


def _product(build: Builder, x: Value, n: int) -> Value:
    """x ** n; of halves only the products that eager makes one by one are rounded so."""
    wide = DType.F32 if x.dtype.is_narrow and not 0 < n <= 3 else x.dtype
    made = [build.convert(x, wide)]
    for a, b in products_of(abs(n)):
        made.append(build.emit("mul", (made[a], made[b]), {}))
    whole = made[-1] if n > 0 else build.emit("reciprocal", (made[-1],), {})
    return build.convert(whole, x.dtype)


def clamp(call: Call) -> Value:
    out, build = call.out, call.build
    if out.dtype == DType.BOOL:
        raise Refused("bools")
    result = build.uniform(call.tensor("self"), out.shape, out.dtype)
    for name, kind in (("min", "maximum"), ("max", "minimum")):
        if call.given(name):
            bound = build.uniform(call.operand(name), out.shape, out.dtype)
            # of 0.0 and -0.0 ATen keeps the element against a number, the bound against a tensor
            pair = (bound, result) if isinstance(bound, Scalar) else (result, bound)
            result = build.emit(kind, pair, {})
    assert isinstance(result, Value)
    return result


def relu(call: Call) -> Value:
    """A negative zero stays one: of equals, maximum gives the second."""
    return call.build.emit("maximum", (_zero(call.out.dtype), call.tensor("self")), {})


def where(call: Call) -> Value:
    test = call.tensor("condition")
    if test.dtype != DType.BOOL:
        raise Refused("a condition that is not bool")
    return call.build.where(test, call.operand("self"), call.operand("other"), call.out)


def convert(call: Call) -> Value:
    """A copy in another dtype, or in the same one."""
    x = call.tensor("self" if "self" in call.arguments else "a")
    if x.type.device != call.out.device or call.flag("pin_memory"):
        raise Refused("a move to another device")
    return (
        call.build.convert(x, call.out.dtype) if x.dtype != call.out.dtype else call.build.copy(x)
    )


def copy_into(call: Call) -> Value:
    """`copy(self, src)`: src in the shape and dtype of self."""
    source = call.tensor("src")
    if source.type.device != call.out.device:
        raise Refused("a move to another device")
    here = call.build.expand(call.build.convert(source, call.out.dtype), call.out.shape)
    return call.build.copy(here) if here is source else here


def common_dtype(call: Call, *names: str) -> DType:
    """What torch promotes these arguments to."""
    schema = [a.name for a in call.node.target._schema.arguments]  # type: ignore[union-attr]
    found = {**dict(zip(schema, call.node.args, strict=False)), **call.node.kwargs}
    examples = [a.meta["val"] if isinstance(a, Node) else a for a in map(found.get, names)]
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    return dtype_of(elementwise_dtypes(*examples, type_promotion_kind=kind)[1])


def _times(call: Call, x: Operand, factor: float, dtype: DType) -> Operand:
    if isinstance(x, Scalar):
        if isinstance(x.value, SymDim):
            raise Refused("a multiple of a size")
        return Scalar(x.value * factor)
    return call.build.elementwise("mul", x, Scalar(factor), shape=x.shape, dtype=dtype)


def _zero(dtype: DType) -> Scalar:
    return Scalar(0.0 if dtype.is_float else 0)


def _holds(dtype: DType, x: Operand) -> bool:
    """Whether an integer dtype holds this operand; tensors it does."""
    if isinstance(x, Value) or not isinstance(x.value, int):
        return isinstance(x, Value) or not isinstance(x.value, float)
    bits = dtype.itemsize * 8
    low, high = (0, 2**bits) if dtype == DType.U8 else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return low <= x.value < high


DIVISIONS: dict[str | None, Rule] = {
    None: product("div"),
    "trunc": integral(truncated),
    "floor": integral(product("floordiv")),
}

ROOTS: dict[bool | int | float, str] = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}

MATH = (
    "sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sigmoid sin cos tan asin acos atan "
    "sinh cosh tanh asinh acosh atanh erf erfc lgamma"
)

POINTWISE: dict[str, Rule] = {
    **COMPOSED,
    **{f"aten.{kind}": same(kind, "self") for kind in MATH.split()},
    **{f"aten.{kind}": no_bools(same(kind, "self")) for kind in ("neg", "abs", "sign")},
    **{f"aten.{kind}": rounding(kind) for kind in ("floor", "ceil", "trunc")},
    "aten.round.default": rounding("round"),
    **{
        f"aten.{kind}": on_elements(comparison(kind))
        for kind in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    **{f"aten.{kind}": test(kind) for kind in ("isnan", "isinf")},
    "aten.logical_not": logical("logical_not", "self"),
    **{
        f"aten.logical_{kind}": logical(f"logical_{kind}", "self", "other")
        for kind in ("and", "or", "xor")
    },
    **{
        f"aten.bitwise_{kind}": on_bools(f"bitwise_{kind}", f"logical_{kind}", "self", "other")
        for kind in ("and", "or", "xor")
    },
    "aten.bitwise_not": on_bools("bitwise_not", "logical_not", "self"),
    "aten.__lshift__": shift("shift_left"),
    "aten.__rshift__": shift("shift_right"),
    "aten.bitwise_left_shift": shift("shift_left"),
    "aten.bitwise_right_shift": shift("shift_right"),
    "aten.add": on_elements(scaled_sum("add")),
    "aten.sub": on_elements(scaled_sum("sub")),
    "aten.mul": multiply,
    "aten.maximum": on_bools("maximum", "logical_or", "self", "other"),
    "aten.minimum": on_bools("minimum", "logical_and", "self", "other"),
    "aten.max.other": on_bools("maximum", "logical_or", "self", "other"),
    "aten.min.other": on_bools("minimum", "logical_and", "self", "other"),
    "aten.div": divide,
    "aten.true_divide": divide,
    "aten.floor_divide": DIVISIONS["floor"],
    "aten.remainder": on_elements(integral(same("remainder", "self", "other"))),
    "aten.fmod": on_elements(integral(same("fmod", "self", "other"))),
    "aten.pow": on_elements(power),
    "aten.atan2": same("atan2", "self", "other"),
    "aten.hypot": same("hypot", "self", "other"),
    "aten.nextafter": no_halves(same("nextafter", "self", "other")),
    "aten.copysign": same("copysign", "self", "other"),
    "aten.clamp": clamp,
    "aten.clamp_min": clamp,
    "aten.clamp_max": clamp,
    "aten.relu": no_bools(relu),
    "aten.where.self": where,
    "aten._to_copy": convert,
    "aten.clone": convert,
    "aten.lift_fresh_copy": convert,
    "aten.copy": copy_into,
    "prims.convert_element_type": convert,
}
