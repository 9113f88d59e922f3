"""Triton text of reductions: identities, combinations, and the reduction of a tile."""

from __future__ import annotations

from tofuse.ir.kernel import Reduce
from tofuse.ir.types import DType

_LIMITS = {
    DType.I64: (-(2**63), 2**63 - 1),
    DType.I32: (-(2**31), 2**31 - 1),
    DType.I16: (-(2**15), 2**15 - 1),
    DType.I8: (-128, 127),
    DType.U8: (0, 255),
    DType.BOOL: (0, 1),
}


def identity(op: str, dtype: DType) -> str:
    """Return the identity of a reduction."""
    match op:
        case "sum":
            return "0.0" if dtype.is_float else "0"
        case "prod":
            return "1.0" if dtype.is_float else "1"
        case "any":
            return "0"
        case "all":
            return "1"
    is_max = op in ("amax", "argmax")
    if dtype.is_float:
        return f'float("{"-inf" if is_max else "inf"}")'
    return str(_LIMITS[dtype][0 if is_max else 1])


def combine_expression(op: str, a: str, b: str, dtype: DType) -> str:
    """Return the combination of two values of a reduction."""
    match op:
        case "sum":
            return f"({a} + {b})"
        case "prod":
            return f"({a} * {b})"
        case _:
            return f"{_combine_function(op, dtype)}({a}, {b})"


def _combine_function(op: str, dtype: DType) -> str:
    if op == "prod":
        return "_mul"
    is_max = op in ("amax", "any")
    if dtype.is_float:
        return "_amax" if is_max else "_amin"
    return "_largest" if is_max else "_smallest"


def reduce_line(r: Reduce, name: str, dim: int, dtype: DType) -> str:
    """Return the line that reduces one dimension of a tile to one element.

    `dtype` is that of the operand; argmax and argmin keep the operand in a variable `<name>_best`.
    """
    if r.position is not None:
        pair = f"({name}_best, {name})"
        return f"{name}_best, {name} = tl.reduce({pair}, {dim}, _{r.op}, keep_dims=True)"
    if r.op == "sum":
        return f"{name} = tl.sum({name}, {dim}, keep_dims=True)"
    return f"{name} = tl.reduce({name}, {dim}, {_combine_function(r.op, dtype)}, keep_dims=True)"
