"""Rules for elementwise ATen ops of several steps, with ATen's rounding of half precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tofuse.capture.lower.builder import Unsupported, typed_scalar
from tofuse.capture.lower.call import AtenCall, LoweringRule
from tofuse.ir.dims import SymDim
from tofuse.ir.graph import Operand, Scalar, Value
from tofuse.ir.types import DType


def product_or_quotient(kind: str) -> Callable[[AtenCall], Value]:
    """Return the rule of products or quotients.

    ATen's CPU kernels do not round a 0-d float tensor to the half precision of the other operand.
    """

    def rule(call: AtenCall) -> Value:
        out, other = call.out, call.exact_operand("other")
        is_number = isinstance(other, Value) and _is_cpu_scalar_tensor(other)
        dtype = out.dtype.opmath if is_number else out.dtype
        result = call.elementwise(kind, call.operand("self"), other, dtype=dtype)
        return call.build.convert(result, out.dtype)

    return rule


def truncating_division(call: AtenCall) -> Value:
    """Round the quotient to half precision before truncation, unless the divisor is a number."""
    other = call.exact_operand("other")
    is_tensor = isinstance(other, Value) and not _is_cpu_scalar_tensor(other)
    if call.out.dtype.is_reduced_float and is_tensor:
        return call.build.emit("trunc", (product_or_quotient("div")(call),), {})
    return product_or_quotient("truncdiv")(call)


def fused_multiply_add(call: AtenCall) -> Value:
    """`a * b + c`, from Dynamo's `addcmul_` and `lerp_`; the kernel may round once or twice."""
    a, b, c = (call.operand(n) for n in "abc")
    return call.elementwise("add", call.elementwise("mul", a, b), c)


def addcmul_or_addcdiv(kind: str) -> LoweringRule:
    """Return the rule of `self + value * tensor1 * tensor2`, or `/ tensor2`."""

    def rule(call: AtenCall) -> Value:
        value, dtype = call.number("value"), call.out.dtype
        if not dtype.is_float or isinstance(value, SymDim):
            raise Unsupported("integers, or a symbolic factor")
        emit = partial(call.elementwise, dtype=dtype.opmath)
        first = call.operand("tensor1")
        first = first if value == 1 else emit("mul", first, Scalar(value))
        total = emit("add", call.operand("self"), emit(kind, first, call.operand("tensor2")))
        return call.build.convert(total, dtype)

    return rule


def lerp(call: AtenCall) -> Value:
    """Interpolate from the nearer end, as ATen does, so that both ends are exact."""
    result_type, build = call.out, call.build
    if not result_type.dtype.is_float:
        raise Unsupported("an interpolation of integers")
    out = replace(result_type, dtype=result_type.dtype.opmath)
    emit = partial(call.elementwise, dtype=out.dtype)
    start, end, weight = call.tensor("self"), call.tensor("end"), call.exact_operand("weight")
    weight = call.operand("weight") if isinstance(weight, Value) else weight
    base: Operand
    factor: Operand
    if isinstance(weight, Scalar) and isinstance(weight.value, (int, float)):
        from_end = abs(weight.value) >= 0.5
        base, factor = (end, Scalar(weight.value - 1)) if from_end else (start, weight)
    else:
        weight = build.convert_and_expand(weight, out.shape, out.dtype)
        absolute = build.emit("abs", (weight,), {})
        near_end = build.emit("ge", (absolute, typed_scalar(0.5, out.dtype)), {})
        base = build.where(near_end, end, start, out)
        factor = build.where(near_end, emit("sub", weight, Scalar(1)), weight, out)
    result = emit("add", base, emit("mul", factor, emit("sub", end, start)))
    return build.convert(result, result_type.dtype)


def _is_cpu_scalar_tensor(x: Value) -> bool:
    """Whether ATen's CPU kernels may read a tensor as a number."""
    return not x.shape and x.dtype in (DType.F32, DType.F64) and x.type.on_host


COMPOSED_RULES: dict[str, LoweringRule] = {
    "aten.addcdiv": addcmul_or_addcdiv("div"),
    "aten.addcmul": addcmul_or_addcdiv("mul"),
    "aten.lerp": lerp,
    "prims.fma": fused_multiply_add,
}
