"""Rules for tensors made from nothing."""

from __future__ import annotations

from tofuse.capture.lower.builder import Refused
from tofuse.capture.lower.call import Call, Rule
from tofuse.ir.graph import Attr, Scalar, Value
from tofuse.ir.types import DType


def full(call: Call) -> Value:
    value = call.number("fill_value")
    return call.build.full(call.out.shape, Scalar(value), call.out.dtype)


def fill(call: Call) -> Value:
    return call.build.full(call.out.shape, Scalar(call.number("value")), call.out.dtype)


def fill_tensor(call: Call) -> Value:
    value = call.build.convert(call.tensor("value"), call.out.dtype)
    return call.build.expand(value, call.out.shape)


def scalar(call: Call) -> Value:
    return call.build.full((), Scalar(call.number("s")), call.out.dtype)


def constant(number: int) -> Rule:
    """Zeros and ones; an empty tensor may hold anything, so it holds zeros."""

    def rule(call: Call) -> Value:
        return call.build.full(call.out.shape, Scalar(number), call.out.dtype)

    return rule


def strided(call: Call) -> Value:
    """Zeros too, where memory has no gaps: what we allocate has none."""
    tensor = call.node.meta["val"]
    if not all(isinstance(n, int) for n in (*tensor.shape, *tensor.stride())):
        raise Refused("memory of a layout that is not fixed")
    pairs = sorted(p for p in zip(tensor.stride(), tensor.shape, strict=True) if p[1] != 1)
    reach = 1
    for stride, extent in pairs:
        if stride != reach:
            raise Refused("memory with gaps")
        reach = stride * extent
    return call.build.full(call.out.shape, Scalar(0), call.out.dtype)


def arange(call: Call) -> Value:
    """Whole numbers only: ATen computes others in double precision, step by step."""
    out = call.out
    start = call.number("start") if "start" in call.arguments else 0
    step = call.number("step") if "step" in call.arguments else 1
    whole = [int(v) for v in (start, step) if isinstance(v, (int, float)) and v == int(v)]
    if len(whole) != 2 or not (out.dtype.is_float or out.dtype.is_int):
        raise Refused("a range of numbers that are not whole")
    counted = DType.I64 if out.dtype.is_float else out.dtype
    line = call.build.emit(
        "iota", (), {"start": whole[0], "step": whole[1], "shape": out.shape, "dtype": counted}
    )
    return call.build.convert(line, out.dtype)


def uniform(call: Call) -> Value:
    stream, seed = call.integer("stream"), call.tensor("seed")
    attrs: dict[str, Attr] = {"stream": stream, "shape": call.out.shape, "dtype": DType.F32}
    return call.build.emit("uniform", (seed,), attrs)


CREATION: dict[str, Rule] = {
    "aten.full": full,
    "aten.full_like": full,
    "aten.new_full": full,
    "aten.fill.Scalar": fill,
    "aten.fill.Tensor": fill_tensor,
    "aten.scalar_tensor": scalar,
    "aten.zeros": constant(0),
    "aten.zeros_like": constant(0),
    "aten.zero": constant(0),
    "aten.new_zeros": constant(0),
    "aten.ones": constant(1),
    "aten.ones_like": constant(1),
    "aten.new_ones": constant(1),
    "aten.empty.memory_format": constant(0),
    "aten.empty_like": constant(0),
    "aten.new_empty": constant(0),
    "aten.empty_strided": strided,
    "aten.new_empty_strided": strided,
    "aten.arange": arange,
    "prims.iota": arange,
    "tofuse.uniform": uniform,
}
