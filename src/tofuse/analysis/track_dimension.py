"""Track a dimension of a value through the ops that kernels fuse."""

from __future__ import annotations

from typing import NamedTuple

from tofuse.ir.dims import product
from tofuse.ir.graph import Op, Value
from tofuse.ops.table import OPS, Pattern


class Dimension(NamedTuple):
    """One dimension of a value."""

    value: Value
    number: int


def dimension_of_result(op: Op, dimension: Dimension) -> Dimension | None:
    """Return the dimension of an op's result that is a dimension of its operand.

    None if there is none, or if no kernel fuses the op with others by that dimension.
    """
    if len(op.results) != 1:
        return None
    (value, number), result = dimension, op.result
    match OPS[op.kind].pattern:
        case Pattern.ELEMENTWISE:
            return Dimension(result, number)
        case Pattern.BROADCAST:
            return Dimension(result, op.ints("dims")[number])
        case Pattern.REDUCE if number not in op.ints("dims"):
            return Dimension(result, number - sum(d < number for d in op.ints("dims")))
        case Pattern.VIEW if op.kind == "permute":
            return Dimension(result, op.ints("dims").index(number))
        case Pattern.VIEW if op.kind == "reshape":
            inner = product(value.shape[number + 1 :])
            for d, extent in enumerate(result.shape):
                if extent == value.shape[number] and product(result.shape[d + 1 :]) == inner:
                    return Dimension(result, d)
    return None
