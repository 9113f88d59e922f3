"""Rules for elementwise ATen ops of several steps, and for when ATen rounds halves in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tofuse.capture.lower.builder import Refused, scalar
from tofuse.capture.lower.call import Call, Rule
from tofuse.ir.dims import SymDim
from tofuse.ir.graph import Operand, Scalar, Value
from tofuse.ir.types import DType


def single(dtype: DType) -> DType:
    """In which ATen computes several steps that it rounds halves after."""
    return DType.F32 if dtype.is_narrow else dtype


def product(kind: str) -> Callable[[Call], Value]:
    """Products and quotients: halves by a 0-d tensor of floats, which ATen's kernels for the CPU
    take for a number that is not rounded to a half."""

    def rule(call: Call) -> Value:
        out, other = call.out, call.operand("other")
        dtype = single(out.dtype) if isinstance(other, Value) and _is_number(other) else out.dtype
        operands = (call.operand("self"), other)
        found = call.build.elementwise(kind, *operands, shape=out.shape, dtype=dtype)
        return call.build.convert(found, out.dtype)

    return rule


def truncated(call: Call) -> Value:
    """A quotient of halves is rounded to one before it is cut off, one by a number is not."""
    other = call.operand("other")
    if call.out.dtype.is_narrow and isinstance(other, Value) and not _is_number(other):
        return call.build.emit("trunc", (product("div")(call),), {})
    return product("truncdiv")(call)


def fused_multiply_add(call: Call) -> Value:
    """What Dynamo makes of `addcmul_` and `lerp_`; whether it rounds once is up to the kernel."""
    (a, b, c), out = (call.operand(n) for n in "abc"), call.out
    scaled = call.build.elementwise("mul", a, b, shape=out.shape, dtype=out.dtype)
    return call.build.elementwise("add", scaled, c, shape=out.shape, dtype=out.dtype)


def scaled_pair(kind: str) -> Rule:
    """`self + value * tensor1 * tensor2`, or divided by the second."""

    def rule(call: Call) -> Value:
        out, build = call.out, call.build
        value, dtype = call.number("value"), single(out.dtype)
        if not out.dtype.is_float or isinstance(value, SymDim):
            raise Refused("integers, or a factor that is not fixed")

        def do(kind: str, *operands: Operand) -> Value:
            return build.elementwise(kind, *operands, shape=out.shape, dtype=dtype)

        first = call.operand("tensor1")
        first = first if value == 1 else do("mul", first, Scalar(value))
        total = do("add", call.operand("self"), do(kind, first, call.operand("tensor2")))
        return build.convert(total, out.dtype)

    return rule


def interpolate(call: Call) -> Value:
    """Measured from the nearer end, as ATen does, so that both ends are met exactly."""
    given, build = call.out, call.build
    if not given.dtype.is_float:
        raise Refused("an interpolation of what are no floats")
    out = replace(given, dtype=single(given.dtype))

    def do(kind: str, *operands: Operand) -> Value:
        return build.elementwise(kind, *operands, shape=out.shape, dtype=out.dtype)

    start, end, weight = call.tensor("self"), call.tensor("end"), call.operand("weight")
    base: Operand
    factor: Operand
    if isinstance(weight, Scalar) and isinstance(weight.value, (int, float)):
        far = abs(weight.value) >= 0.5
        base, factor = (end, Scalar(weight.value - 1)) if far else (start, weight)
    else:
        weight = build.uniform(weight, out.shape, out.dtype)
        absolute = build.emit("abs", (weight,), {})
        test = build.emit("ge", (absolute, scalar(0.5, out.dtype)), {})
        base = build.where(test, end, start, out)
        factor = build.where(test, do("sub", weight, Scalar(1)), weight, out)
    found = do("add", base, do("mul", factor, do("sub", end, start)))
    return build.convert(found, given.dtype)


def _is_number(x: Value) -> bool:
    """Whether ATen's kernels for the CPU may take a tensor for a number."""
    return not x.shape and x.dtype in (DType.F32, DType.F64) and x.type.device == "cpu"


COMPOSED: dict[str, Rule] = {
    "aten.addcdiv": scaled_pair("div"),
    "aten.addcmul": scaled_pair("mul"),
    "aten.lerp": interpolate,
    "prims.fma": fused_multiply_add,
}
