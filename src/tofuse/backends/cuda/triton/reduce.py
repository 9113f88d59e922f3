"""Triton text of reductions: identities, combinations, and the reduction of a tile."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tofuse.ir.kernel import Reduce
from tofuse.ir.types import DType
from tofuse.ops.table import reduction_identity


def identity(op: str, dtype: DType) -> str:
    """Return the identity of a reduction."""
    start = reduction_identity(op, dtype)
    if not dtype.is_float:
        return str(start)
    return f'float("{start}")' if math.isinf(start) else str(float(start))


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


def reduce_line(r: Reduce, names: Sequence[str], dim: int, dtype: DType) -> str:
    """Return the line that reduces one dimension of a tile to one element.

    `dtype` is that of the operand; argmax and argmin keep the operand in a variable `<name>_best`.
    Several names are tiles of one shape, whose sums are computed.
    """
    if len(names) > 1:
        all_names = ", ".join(names)
        return f"{all_names} = tl.reduce(({all_names}), {dim}, _sum{len(names)}, keep_dims=True)"
    (name,) = names
    if r.position is not None:
        pair = f"({name}_best, {name})"
        return f"{name}_best, {name} = tl.reduce({pair}, {dim}, _{r.op}, keep_dims=True)"
    if r.op == "sum":
        return f"{name} = tl.sum({name}, {dim}, keep_dims=True)"
    return f"{name} = tl.reduce({name}, {dim}, {_combine_function(r.op, dtype)}, keep_dims=True)"
