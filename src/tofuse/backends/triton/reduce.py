"""Reductions in Triton: identities, how two values combine, and a tile's reduction."""

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
    """The number that changes nothing."""
    match op:
        case "sum":
            return "0.0" if dtype.is_float else "0"
        case "prod":
            return "1.0" if dtype.is_float else "1"
        case "any":
            return "0"
        case "all":
            return "1"
    low = op in ("amax", "argmax")
    if dtype.is_float:
        return f'float("{"-inf" if low else "inf"}")'
    return str(_LIMITS[dtype][0 if low else 1])


def combine_text(op: str, a: str, b: str, dtype: DType) -> str:
    """Two values of a reduction as one."""
    match op:
        case "sum":
            return f"({a} + {b})"
        case "prod":
            return f"({a} * {b})"
        case _:
            return f"{_function(op, dtype)}({a}, {b})"


def _function(op: str, dtype: DType) -> str:
    if op == "prod":
        return "_mul"
    largest = op in ("amax", "any")
    if dtype.is_float:
        return "_amax" if largest else "_amin"
    return "_largest" if largest else "_smallest"


def reduced(r: Reduce, name: str, dim: int, dtype: DType) -> str:
    """The line that reduces one dimension of a tile to one element.

    `dtype` is that of what is reduced; argmax and argmin carry it in a variable `<name>_best`.
    """
    if r.position is not None:
        pair = f"({name}_best, {name})"
        return f"{name}_best, {name} = tl.reduce({pair}, {dim}, _{r.op}, keep_dims=True)"
    if r.op == "sum":
        return f"{name} = tl.sum({name}, {dim}, keep_dims=True)"
    return f"{name} = tl.reduce({name}, {dim}, {_function(r.op, dtype)}, keep_dims=True)"
