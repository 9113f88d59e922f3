"""Triton expressions of elementwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tofuse.errors import CompileError
from tofuse.ir.types import DType

TRITON_TYPES = {
    DType.F64: "tl.float64",
    DType.F32: "tl.float32",
    DType.F16: "tl.float16",
    DType.BF16: "tl.bfloat16",
    DType.I64: "tl.int64",
    DType.I32: "tl.int32",
    DType.I16: "tl.int16",
    DType.I8: "tl.int8",
    DType.U8: "tl.uint8",
    DType.BOOL: "tl.int1",
}


def elementwise_expression(
    op: str, args: Sequence[str], operand_dtype: DType, dtype: DType, *, exact: bool = False
) -> str:
    """Return the expression of an op; raise CompileError if this backend has no rule for it.

    Quotients of float32 are within 2 ulp, or correctly rounded if `exact`.
    """
    if op == "div" and operand_dtype is DType.F32 and exact:
        return f"tl.div_rn({args[0]}, {args[1]})"
    if op == "convert":
        return _convert(args[0], operand_dtype, dtype)
    rule = (
        _FLOAT if operand_dtype.is_float else _BOOL if operand_dtype is DType.BOOL else _INT
    ).get(op) or _ANY.get(op)
    if rule is None:
        raise CompileError(f"no Triton rule for {op} of {operand_dtype.value}")
    text = rule(args, operand_dtype) if callable(rule) else rule
    return text if callable(rule) else text.format(*args)


def constant_expression(value: bool | int | float, dtype: DType) -> str:
    """Return a constant of a register type."""
    if dtype.is_float:
        number = float(value)
        if number == 0 and math.copysign(1.0, number) < 0:  # tl.full makes it +0.0
            return f"(tl.full([], 0.0, {TRITON_TYPES[dtype]}) * -1.0)"
        text = repr(number) if abs(number) < float("inf") else f'float("{number}")'
    elif dtype is DType.BOOL:
        text = repr(bool(value))
    else:
        text = repr(int(value))
    return f"tl.full([], {text}, {TRITON_TYPES[dtype]})"


def _convert(x: str, operand_dtype: DType, to: DType) -> str:
    if operand_dtype.is_float and to in (DType.I16, DType.I8, DType.U8):
        return f"{x}.to(tl.int32).to({TRITON_TYPES[to]})"  # by way of int, as in C
    return f"{x}.to({TRITON_TYPES[to]})"


def _infix(op: str) -> str:
    return f"({{0}} {op} {{1}})"


def _library(name: str, arity: int = 1) -> str:
    return f"libdevice.{name}({', '.join(f'{{{k}}}' for k in range(arity))})"


def _reciprocal(args: Sequence[str], operand_dtype: DType) -> str:
    return f"({constant_expression(1.0, operand_dtype)} / {args[0]})"


def _sqrt(args: Sequence[str], operand_dtype: DType) -> str:
    return f"tl.sqrt_rn({args[0]})" if operand_dtype is DType.F32 else f"libdevice.sqrt({args[0]})"


def _sigmoid(args: Sequence[str], operand_dtype: DType) -> str:
    return _reciprocal((f"(1.0 + libdevice.exp(-1.0 * {args[0]}))",), operand_dtype)


def _truncdiv(args: Sequence[str], operand_dtype: DType) -> str:
    quotient = elementwise_expression("div", args, operand_dtype, operand_dtype, exact=True)
    return f"libdevice.trunc({quotient})"


def _logical(op: str) -> Callable[[Sequence[str], DType], str]:
    def rule(args: Sequence[str], operand_dtype: DType) -> str:
        tests = [a if operand_dtype is DType.BOOL else f"({a} != 0)" for a in args]
        return f"({tests[0]} {op} {tests[1]})"

    return rule


def _shift(left: bool) -> Callable[[Sequence[str], DType], str]:
    def rule(args: Sequence[str], operand_dtype: DType) -> str:
        x, n = args
        bits, ty = operand_dtype.itemsize * 8, TRITON_TYPES[operand_dtype]
        too_far = f"(({n} < 0) | ({n} >= {bits}))"
        if left:
            return f"tl.where({too_far}, 0, {x} << tl.where({too_far}, 0, {n})).to({ty})"
        shifted = f"({x} >> tl.where({too_far}, {bits - 1}, {n}).to({ty}))"
        return f"tl.where({too_far}, 0, {shifted})" if operand_dtype is DType.U8 else shifted

    return rule


_Rule = dict[str, "str | Callable[[Sequence[str], DType], str]"]
_COMPARE: _Rule = {
    "eq": _infix("=="),
    "ne": _infix("!="),
    "lt": _infix("<"),
    "le": _infix("<="),
    "gt": _infix(">"),
    "ge": _infix(">="),
}
_ANY: _Rule = {
    **_COMPARE,
    "add": _infix("+"),
    "sub": _infix("-"),
    "mul": _infix("*"),
    "where": "tl.where({0}, {1}, {2})",
    "logical_and": _logical("&"),
    "logical_or": _logical("|"),
    "logical_xor": _logical("^"),
    "logical_not": "({0} == 0)",
    "bitwise_and": _infix("&"),
    "bitwise_or": _infix("|"),
    "bitwise_xor": _infix("^"),
    "abs": "tl.abs({0})",
    "neg": "(0 - {0})",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
}
_ROUNDING_OPS = ["floor", "ceil", "trunc", "round"]
_INT: _Rule = {
    **dict.fromkeys(_ROUNDING_OPS, "{0}"),
    "bitwise_not": "(~{0})",
    "shift_left": _shift(True),
    "shift_right": _shift(False),
    "truncdiv": _infix("//"),  # Triton's // and % of integers are C's
    "fmod": _infix("%"),
    "remainder": "_remainder({0}, {1})",
    "floordiv": "_floordiv({0}, {1})",
    "sign": "(({0} > 0).to(tl.int8) - ({0} < 0).to(tl.int8)).to({0}.dtype)",
}
_BOOL: _Rule = {
    **dict.fromkeys(_ROUNDING_OPS, "{0}"),
    "bitwise_not": "({0} == 0)",
    "abs": "{0}",
    "sign": "{0}",
    "maximum": _infix("|"),
    "minimum": _infix("&"),
    "mul": _infix("&"),
    "add": _infix("^"),
}
_UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc lgamma rsqrt floor ceil trunc"
)
_FLOAT: _Rule = {
    **{name: _library(name) for name in _UNARY.split()},
    "round": _library("rint"),
    "sqrt": _sqrt,
    "sigmoid": _sigmoid,
    "reciprocal": _reciprocal,
    "div": _infix("/"),
    "truncdiv": _truncdiv,
    "fmod": _library("fmod", 2),
    "remainder": "_float_remainder({0}, {1})",
    "floordiv": "_float_floordiv({0}, {1})",
    "pow": _library("pow", 2),
    "atan2": _library("atan2", 2),
    "hypot": _library("hypot", 2),
    "nextafter": _library("nextafter", 2),
    "copysign": _library("copysign", 2),
    "neg": "({0} * -1.0)",  # Triton's minus is 0 - x, which loses the sign of zero
    "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0)).to({0}.dtype)",
    "isnan": "({0} != {0})",
    "isinf": '(tl.abs({0}) == float("inf"))',
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "round_bf16": "{0}.to(tl.bfloat16).to(tl.float32)",
    "round_f16": "{0}.to(tl.float16).to(tl.float32)",
    "round_f8e4m3": "_decode_f8e4m3(_encode_f8e4m3({0}))",
    "round_f8e5m2": "_decode_f8e5m2(_encode_f8e5m2({0}))",
}
