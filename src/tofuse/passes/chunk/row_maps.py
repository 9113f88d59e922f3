"""How rows pass through an op: along which dimension its operands and results have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tofuse.ir.dims import Dim
from tofuse.ir.graph import Op, Value
from tofuse.ops.table import OPS, Pattern

PRODUCTS = ("aten.mm.default", "aten.addmm.default")


@dataclass(frozen=True)
class Rows:
    """The rows of a value lie along `dim`; each of its indices is `unit` rows."""

    dim: int
    unit: int


class RowsMixed(Exception):
    """An op mixes rows, or its effect on them is not known."""


def result_rows(op: Op, operand: int, rows: Rows) -> Rows | None:
    """Return where the result has the rows of an operand; None if it is a sum over all rows.

    Raises RowsMixed. `operand` is a position among the op's tensors.
    """
    dim = rows.dim
    match OPS[op.kind].pattern:
        case Pattern.ELEMENTWISE:
            return rows
        case Pattern.BROADCAST:
            return Rows(op.ints("dims")[dim], rows.unit)
        case Pattern.VIEW if op.kind == "permute":
            return Rows(op.ints("dims").index(dim), rows.unit)
        case Pattern.VIEW if op.kind == "reshape":
            return _reshaped(_static(op.inputs[0]), _static(op.result), rows)
        case Pattern.VIEW:  # a slice
            return _unsliced(op, rows)
        case Pattern.REDUCE if dim not in op.ints("dims"):
            return Rows(dim - sum(d < dim for d in op.ints("dims")), rows.unit)
        case Pattern.REDUCE if op.kind == "sum":
            return None
        case Pattern.GATHER:
            found = rows if operand == 1 else Rows(op.ints("dims")[dim], rows.unit)
            if found.dim != -1:
                return found
        case Pattern.OPAQUE:
            return _product_rows(op, operand, rows)
    raise RowsMixed


def operand_rows(op: Op, operand: int, rows: Rows | None) -> Rows | None:
    """Return where an operand has the rows of the result, or None if it has none.

    `rows` is None for a product that is a sum over all rows. Raises RowsMixed.
    """
    if OPS[op.kind].pattern is Pattern.OPAQUE or rows is None:
        return _factor_rows(op, operand, rows)
    dim = rows.dim
    match OPS[op.kind].pattern:
        case Pattern.ELEMENTWISE:
            return rows
        case Pattern.BROADCAST:
            dims = op.ints("dims")
            return Rows(dims.index(dim), rows.unit) if dim in dims else None
        case Pattern.VIEW if op.kind == "permute":
            return Rows(op.ints("dims")[dim], rows.unit)
        case Pattern.VIEW if op.kind == "reshape":
            return _reshaped(_static(op.result), _static(op.inputs[0]), rows)
        case Pattern.VIEW:
            return _unsliced(op, rows)
        case Pattern.REDUCE:
            kept = [d for d in range(len(op.inputs[0].shape)) if d not in op.ints("dims")]
            return Rows(kept[dim], rows.unit)
        case Pattern.GATHER:
            dims = op.ints("dims")
            if operand == 1:
                return rows
            return Rows(dims.index(dim), rows.unit) if dim in dims else None
    raise RowsMixed


def is_product(op: Op) -> bool:
    """Whether an op is a product of two matrices, perhaps with an addend."""
    if op.kind != "opaque" or op.attr("target") not in PRODUCTS or len(op.results) != 1:
        return False
    return op.argument_tensors == op.inputs and op.result.dtype.is_float


def _product_rows(op: Op, operand: int, rows: Rows) -> Rows | None:
    """Return the rows of a product; rows of both factors' inner dimension are summed."""
    place = operand - (len(op.inputs) - 2)  # 0 and 1 are the factors, -1 is the addend
    if not is_product(op) or place < 0 or rows.unit != 1:
        raise RowsMixed
    if place == rows.dim:
        return rows
    if len(op.inputs) > 2:
        raise RowsMixed  # each part of the sum would add the addend
    return None


def _factor_rows(op: Op, operand: int, rows: Rows | None) -> Rows | None:
    if not is_product(op):
        raise RowsMixed
    place = operand - (len(op.inputs) - 2)
    if rows is None:
        return Rows(1 - place, 1)
    if place >= 0:
        return rows if place == rows.dim else None
    shape, result = op.inputs[operand].shape, op.result.shape
    dim = rows.dim - (len(result) - len(shape))
    return Rows(dim, 1) if dim >= 0 and shape[dim] == result[rows.dim] else None


def _static(v: Value) -> tuple[int, ...]:
    """Return a shape without symbols; raise RowsMixed for others."""
    shape = tuple(d for d in v.shape if isinstance(d, int))
    if len(shape) < len(v.shape):
        raise RowsMixed
    return shape


def _reshaped(old: Sequence[int], new: Sequence[int], rows: Rows) -> Rows:
    """Return the rows after a reshape: a range of them must stay a range of one dimension."""
    before, after = math.prod(old[: rows.dim]), math.prod(old[rows.dim + 1 :])
    for k, extent in enumerate(new):
        if extent > 1 and math.prod(new[:k]) == before:
            unit, rest = divmod(rows.unit * math.prod(new[k + 1 :]), after)
            if unit and not rest:
                return Rows(k, unit)
    raise RowsMixed


def _unsliced(op: Op, rows: Rows) -> Rows:
    """Return the rows of a slice that keeps all of them."""
    whole: Dim = op.inputs[0].shape[rows.dim]
    if op.result.shape[rows.dim] == whole and op.ints("step")[rows.dim] == 1:
        return rows
    raise RowsMixed
