"""Rules for ATen ops that create a tensor without tensor operands."""

from __future__ import annotations

import torch

from tofuse.capture.lower.builder import Unsupported
from tofuse.capture.lower.call import AtenCall, LoweringRule, RuleResult
from tofuse.capture.lower.rules.memory_order import dense_dim_order
from tofuse.capture.lower.rules.view_ops import expanded
from tofuse.ir.graph import Attr, Scalar, Value
from tofuse.ir.types import DType


def filled(fill: str | int) -> LoweringRule:
    """Return the rule of a tensor of one number: the argument of this name, or a constant."""

    def rule(call: AtenCall) -> Value:
        value = call.number(fill) if isinstance(fill, str) else fill
        return call.build.full(call.out.shape, Scalar(value), call.out.dtype)

    return rule


def empty(call: AtenCall) -> RuleResult:
    """Fill with zeros; strides must have no gaps, as in our allocations.

    With deterministic algorithms, ATen fills the memory, if an option says so at run time.
    """
    if torch.are_deterministic_algorithms_enabled():
        raise Unsupported("memory that ATen fills")
    dense_dim_order(call.out.shape, call.build.sizes.shape(call.node.meta["val"].stride()))
    return filled(0)(call)


def arange(call: AtenCall) -> Value:
    """Support integers only: ATen computes other ranges in double precision, step by step."""
    out = call.out
    start = call.number("start") if "start" in call.arguments else 0
    step = call.number("step") if "step" in call.arguments else 1
    whole = [int(v) for v in (start, step) if isinstance(v, (int, float)) and v == int(v)]
    if len(whole) != 2 or not (out.dtype.is_float or out.dtype.is_int):
        raise Unsupported("a range with fractions")
    dtype = DType.I64 if out.dtype.is_float else out.dtype
    iota = call.build.iota(out.shape[0], whole[0], whole[1], dtype)
    return call.build.convert(iota, out.dtype)


def uniform(call: AtenCall) -> Value:
    stream, seed = call.integer("stream"), call.tensor("seed")
    attrs: dict[str, Attr] = {"stream": stream, "shape": call.out.shape, "dtype": DType.F32}
    return call.build.emit("uniform", (seed,), attrs)


def bernoulli(call: AtenCall) -> Value:
    attrs: dict[str, Attr] = {"stream": call.integer("stream"), "below": call.integer("below")}
    attrs |= {"shape": call.out.shape, "dtype": DType.BOOL}
    return call.build.emit("bernoulli", (call.tensor("seed"),), attrs)


ZEROS = "zeros zeros_like zero new_zeros"
EMPTY = "empty.memory_format empty_like new_empty empty_strided new_empty_strided empty_permuted"

CREATION_RULES: dict[str, LoweringRule] = {
    **{f"aten.{name}": filled("fill_value") for name in ("full", "full_like", "new_full")},
    "aten.fill.Scalar": filled("value"),
    "aten.fill.Tensor": expanded("value"),
    "aten.scalar_tensor": filled("s"),
    **{f"aten.{name}": filled(0) for name in ZEROS.split()},
    **{f"aten.{name}": filled(1) for name in ("ones", "ones_like", "new_ones")},
    **{f"aten.{name}": empty for name in EMPTY.split()},
    "aten.arange": arange,
    "prims.iota": arange,
    "tofuse.uniform": uniform,
    "tofuse.bernoulli": bernoulli,
}
