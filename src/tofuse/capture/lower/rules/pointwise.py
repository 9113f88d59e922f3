"""Rules for elementwise ATen ops."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from tofuse.capture.lower.builder import Builder, Unsupported, typed_scalar
from tofuse.capture.lower.call import AtenCall, LoweringRule, RuleResult
from tofuse.capture.lower.rules.composed import (
    COMPOSED_RULES,
    product_or_quotient,
    truncating_division,
)
from tofuse.capture.lower.rules.view_ops import expanded
from tofuse.ir.dims import SymDim
from tofuse.ir.graph import Operand, Scalar, Value
from tofuse.ir.types import DType
from tofuse.ops.powers import ROOTS, is_repeated_product, repeated_product
from tofuse.ops.reference import from_torch_dtype
from tofuse.ops.table import COMPARISONS, UNARY_MATH
from tofuse.torch_internals.layouts import TypePromotion, elementwise_dtypes


def direct(kind: str) -> LoweringRule:
    """Return the rule of an ATen op that is one IR op, computed in the result's dtype."""

    def rule(call: AtenCall) -> Value:
        return call.elementwise(kind, *map(call.operand, call.arguments))

    return rule


def unless(excluded: Callable[[DType], bool], rule: LoweringRule) -> LoweringRule:
    """Leave calls to PyTorch whose result has an excluded dtype."""

    def guarded(call: AtenCall) -> RuleResult:
        if excluded(call.out.dtype):
            raise Unsupported(f"{call.out.dtype}")
        return rule(call)

    return guarded


def except_bool(rule: LoweringRule) -> LoweringRule:
    """Leave bools to PyTorch, where they have another meaning or are an error."""
    return unless(lambda dtype: dtype is DType.BOOL, rule)


def except_float(rule: LoweringRule) -> LoweringRule:
    """Leave floats to PyTorch, where they are an error."""
    return unless(lambda dtype: dtype.is_float, rule)


def rounding(kind: str) -> LoweringRule:
    """Return the rule of floor, ceil, trunc or round; integers are copied."""

    def rule(call: AtenCall) -> RuleResult:
        if call.out.dtype.is_float:
            return direct(kind)(call)
        return call.tensor("self")

    return rule


def with_bool_variant(rule: LoweringRule, bool_kind: str) -> LoweringRule:
    """Lower calls with a bool result to another IR op."""
    bool_rule = direct(bool_kind)
    return lambda call: (bool_rule if call.out.dtype == DType.BOOL else rule)(call)


def comparison(kind: str) -> LoweringRule:
    """Return the rule of a comparison in the operands' common dtype; bools order as 0 and 1."""

    def rule(call: AtenCall) -> Value:
        dtype = promoted_dtype(call)
        if dtype == DType.BOOL and kind not in ("eq", "ne"):
            dtype = DType.U8
        operands = [call.operand(n, dtype) for n in ("self", "other")]
        return call.elementwise(kind, *operands, dtype=dtype)

    return rule


def float_test(kind: str) -> LoweringRule:
    """Return the rule of isnan or isinf; false for integers."""

    def rule(call: AtenCall) -> Value:
        x = call.tensor("self")
        if not x.dtype.is_float:
            return call.build.full(x.shape, Scalar(False), DType.BOOL)
        return call.build.emit(kind, (x,), {})

    return rule


def sum_with_alpha(kind: str) -> LoweringRule:
    """Return the rule of `self + alpha * other`, or `-`."""

    def rule(call: AtenCall) -> Value:
        out, other, alpha = call.out, call.operand("other"), call.number("alpha")
        if isinstance(alpha, SymDim):
            raise Unsupported("a symbolic alpha")
        if out.dtype == DType.BOOL and (kind, alpha) != ("add", 1):
            raise Unsupported("bools")
        if kind == "sub" and any(_is_bool(call.arguments[n]) for n in ("self", "other")):
            raise Unsupported("a difference of bools, which is an error")
        dtype = out.dtype
        if alpha != 1:
            dtype = dtype.opmath
            other = _scale(call, other, call.operand("alpha"), dtype)
        final = "logical_or" if dtype == DType.BOOL else kind
        total = call.elementwise(final, call.operand("self"), other, dtype=dtype)
        return call.build.convert(total, out.dtype)

    return rule


def safe_integer_division(rule: LoweringRule) -> LoweringRule:
    """Restrict a rounding division to floats, and to integers by a constant except 0 and -1."""

    def checked(call: AtenCall) -> RuleResult:
        dtype = call.out.dtype
        if not dtype.is_float:
            divisor = call.integer("other")
            if not dtype.is_int or divisor in (0, -1):
                raise Unsupported("an integer division that may fail")
        return rule(call)

    return checked


def shift(kind: str) -> LoweringRule:
    """Return the rule of an integer shift, by less than the width if the amount is constant."""

    def rule(call: AtenCall) -> RuleResult:
        amount = call.operand("other")
        width = call.out.dtype.itemsize * 8
        if not call.out.dtype.is_int:
            raise Unsupported("a shift of floats")
        constant = amount.value if isinstance(amount, Scalar) else 0
        if not isinstance(constant, int) or not 0 <= constant < width:
            raise Unsupported("a shift beyond the width")
        return direct(kind)(call)

    return rule


def divide(call: AtenCall) -> RuleResult:
    mode = call.arguments.get("rounding_mode")
    if not isinstance(mode, (str, type(None))) or mode not in DIVISIONS:
        raise Unsupported("an unknown rounding mode")
    return DIVISIONS[mode](call)


def power(call: AtenCall) -> RuleResult:
    """Lower small constant exponents to products and roots, as ATen; other powers need floats."""
    base, exponent = call.operand("self"), call.operand("exponent")
    out, build = call.out, call.build
    if isinstance(base, Value) and isinstance(exponent, Scalar) and out.dtype != DType.BOOL:
        x = build.expand(build.convert(base, out.dtype), out.shape)
        e = exponent.value
        if e == 0:
            return build.full(out.shape, Scalar(1), out.dtype)
        if e == 1:
            return x
        if out.dtype.is_float and e in ROOTS and (e == -1 or not _calls_pow(x)):
            return build.emit(ROOTS[e], (x,), {})
        if isinstance(e, int | float) and is_repeated_product(e, out.dtype):
            return _integer_power(build, x, int(e))
    if not out.dtype.is_float:
        raise Unsupported("a power of integers")
    return direct("pow")(call)


def _integer_power(build: Builder, x: Value, n: int) -> Value:
    """Return x ** n by products; of half precision, eager rounds them only for -2, 2 and 3."""
    rounds = n in (-2, 2, 3) and not _calls_pow(x)
    base = build.convert(x, x.dtype if rounds else x.dtype.opmath)
    power = repeated_product(base, abs(n), lambda a, b: build.emit("mul", (a, b), {}))
    result = power if n > 0 else build.emit("reciprocal", (power,), {})
    return build.convert(result, x.dtype)


def _calls_pow(x: Value) -> bool:
    """Whether ATen's kernel calls `pow` for every exponent: pow(-0.0, 0.5) is 0.0."""
    return x.dtype is DType.F16 and x.type.on_host


def clamp(call: AtenCall) -> Value:
    out, build = call.out, call.build
    result = build.convert_and_expand(call.tensor("self"), out.shape, out.dtype)
    for name, kind in (("min", "maximum"), ("max", "minimum")):
        if call.has(name):
            bound = build.convert_and_expand(call.operand(name), out.shape, out.dtype)
            # Of 0.0 and -0.0 ATen returns the element if the bound is a number, else the bound.
            operands = (bound, result) if isinstance(bound, Scalar) else (result, bound)
            result = build.emit(kind, operands, {})
    assert isinstance(result, Value)
    return result


def relu(call: AtenCall) -> Value:
    """Return max(0, x); -0.0 stays, because `maximum` returns the second of equal operands."""
    return call.build.emit("maximum", (typed_scalar(0, call.out.dtype), call.tensor("self")), {})


def where(call: AtenCall) -> Value:
    test = call.tensor("condition")
    if test.dtype != DType.BOOL:
        raise Unsupported("a condition that is not bool")
    return call.build.where(test, call.operand("self"), call.operand("other"), call.out)


def to_dtype(call: AtenCall) -> Value:
    """Copy to another dtype or to the same one; `vmap` also converts numbers."""
    if isinstance(call.arguments.get("self"), (int, float)):
        number = call.operand("self")
        assert isinstance(number, Scalar)
        return call.build.full((), number, call.out.dtype)
    x = call.tensor("self" if "self" in call.arguments else "a")
    if x.type.device != call.out.device or call.flag("pin_memory"):
        raise Unsupported("a move to another device")
    return call.build.convert(x, call.out.dtype)


def promoted_dtype(call: AtenCall) -> DType:
    """Return the dtype that torch promotes `self` and `other` to."""
    arguments = [call.fx_arguments[name] for name in ("self", "other")]
    examples = [a.meta["val"] if isinstance(a, Node) else a for a in arguments]
    kind = TypePromotion.DEFAULT
    return from_torch_dtype(elementwise_dtypes(*examples, type_promotion_kind=kind)[1])


def _is_bool(x: object) -> bool:
    return x.dtype is DType.BOOL if isinstance(x, Value) else isinstance(x, bool)


def _scale(call: AtenCall, x: Operand, factor: Operand, dtype: DType) -> Operand:
    if isinstance(x, Value):
        return call.build.elementwise("mul", x, factor, shape=x.shape, dtype=dtype)
    assert isinstance(factor, Scalar)
    if isinstance(x.value, SymDim) or isinstance(factor.value, SymDim):
        raise Unsupported("a multiple of a size")
    return Scalar(x.value * factor.value)


DIVISIONS: dict[str | None, LoweringRule] = {
    None: product_or_quotient("div"),
    "trunc": safe_integer_division(truncating_division),
    "floor": safe_integer_division(product_or_quotient("floordiv")),
}


POINTWISE_RULES: dict[str, LoweringRule] = {
    **COMPOSED_RULES,
    **{f"aten.{kind}": direct(kind) for kind in UNARY_MATH},
    **{f"aten.{kind}": except_bool(direct(kind)) for kind in ("neg", "abs", "sign")},
    "aten.sgn": except_bool(direct("sign")),
    **{f"aten.{kind}": rounding(kind) for kind in ("floor", "ceil", "trunc")},
    "aten.round.default": rounding("round"),
    **{f"aten.{kind}": comparison(kind) for kind in COMPARISONS},
    **{f"aten.{kind}": float_test(kind) for kind in ("isnan", "isinf")},
    "aten.logical_not": direct("logical_not"),
    **{
        f"aten.{kind}": direct(kind)
        for kind in ("logical_and", "logical_or", "logical_xor", "atan2", "hypot", "copysign")
    },
    **{
        f"aten.bitwise_{kind}": except_float(
            with_bool_variant(direct(f"bitwise_{kind}"), f"logical_{kind}")
        )
        for kind in ("and", "or", "xor")
    },
    "aten.bitwise_not": with_bool_variant(direct("bitwise_not"), "logical_not"),
    **{f"aten.{name}": shift("shift_left") for name in ("__lshift__", "bitwise_left_shift")},
    **{f"aten.{name}": shift("shift_right") for name in ("__rshift__", "bitwise_right_shift")},
    "aten.add": sum_with_alpha("add"),
    "aten.sub": sum_with_alpha("sub"),
    "aten.mul": with_bool_variant(product_or_quotient("mul"), "logical_and"),
    "aten.maximum": with_bool_variant(direct("maximum"), "logical_or"),
    "aten.minimum": with_bool_variant(direct("minimum"), "logical_and"),
    "aten.div": divide,
    "aten.floor_divide": DIVISIONS["floor"],
    "aten.remainder": safe_integer_division(direct("remainder")),
    "aten.fmod": safe_integer_division(direct("fmod")),
    "aten.pow": power,
    # It depends on the spacing of floats, and kernels compute half precision in float32.
    "aten.nextafter": unless(lambda dtype: dtype.is_reduced_float, direct("nextafter")),
    **{f"aten.{name}": except_bool(clamp) for name in ("clamp", "clamp_min", "clamp_max")},
    "aten.relu": except_bool(relu),
    "aten.where.self": where,
    **{f"aten.{name}": to_dtype for name in ("_to_copy", "clone", "lift_fresh_copy")},
    "aten.copy": expanded("src"),
    "prims.convert_element_type": to_dtype,
}
