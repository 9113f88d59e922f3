"""Reductions, which give Float results for half-precision operands, and scans, which do not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from tofuse.capture.lower.rules.reductions import squared_deviations
from tofuse.frontends.datatypes import DataType, datatype
from tofuse.frontends.items import Node, Number, OperandLike, Rule
from tofuse.frontends.lowering import Lowering
from tofuse.ir.dims import Dim, product
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.types import DType

Dims = int | Sequence[OperandLike] | None


def reduce(
    name: str,
    low: Lowering,
    arg: OperandLike,
    dims: Dims = None,
    keepdim: bool = False,
    dtype: DataType | torch.dtype = DataType.Null,
) -> Node:
    """Reduce over `dims`, or over all dimensions.

    `dtype` is the type of the computation and of the result.
    """
    x = low.tensor(arg)
    axes = reduced_axes(low, x, dims)
    kind, target = _kind_and_type(low, name, x, datatype(dtype))
    value = low.convert(x.value, x.dtype, target)
    if target.ir is DType.OTHER:
        return _pytorch_reduction(low, name, value, axes, keepdim, target)
    if name in ("max", "min"):
        _require_elements(low, x, axes)
    reduced = low.builder.reduce(kind, value, axes, target.ir)
    return _restore_dims(low, x, reduced, axes, keepdim, target)


def _require_elements(low: Lowering, x: Node, axes: tuple[int, ...]) -> None:
    """Reject a max or min of no elements; a run checks symbolic sizes."""
    count = product(x.shape[d] for d in axes)
    message = "the reduced dimensions have no elements, so there is no maximum or minimum"
    low.require_at_least(count, 1, message)


def _kind_and_type(low: Lowering, name: str, x: Node, dtype: DataType) -> tuple[str, DataType]:
    """Return the reduction's kind and type in the graph; integers and bools sum in 64 bits."""
    target = low.promoted_type([x]) if dtype is DataType.Null else dtype
    if dtype is DataType.Null and name in ("sum", "prod") and target.category < 2:
        target = DataType.Int
    if name in ("sum", "prod"):
        return name, target
    if target.is_complex:
        raise low.error("complex numbers have no maximum or minimum")
    if target is DataType.Bool:
        return {"max": "any", "min": "all"}[name], target
    return f"a{name}", target


def _pytorch_reduction(
    low: Lowering, name: str, value: Value, axes: tuple[int, ...], keepdim: bool, dtype: DataType
) -> Node:
    shape = tuple(
        1 if d in axes else e for d, e in enumerate(value.shape) if keepdim or d not in axes
    )
    if name == "prod" or dtype is DataType.UInt64:
        raise low.error(f"it does not take {dtype.value} operands")
    return low.call("aten.sum.dim_IntList", (value, axes, keepdim), shape, dtype)


def reduced_axes(low: Lowering, x: Node, dims: Dims) -> tuple[int, ...]:
    """Return the dimensions to reduce, sorted; None means all."""
    if dims is None:
        return tuple(range(x.rank))
    given = [dims] if isinstance(dims, (int, Number)) else dims
    if not isinstance(given, (list, tuple)) or not given:
        raise low.error("dims must be a dimension, or a list of at least one")
    axes = [low.axis(d, x.rank, "an entry of dims") for d in given]
    if len(set(axes)) != len(axes):
        raise low.error(f"dims {list(given)} contain a dimension twice")
    return tuple(sorted(axes)) if x.rank else ()


def _restore_dims(
    low: Lowering,
    x: Node,
    result: Value,
    axes: tuple[int, ...],
    keepdim: bool,
    dtype: DataType,
) -> Node:
    """Insert the reduced dimensions with size 1 if `keepdim`."""
    if keepdim:
        shape = tuple(1 if d in axes else e for d, e in enumerate(x.shape))
        result = low.builder.reshape(result, shape)
    return Node(low.builder.copy(result) if result is x.value else result, dtype)


def var(
    low: Lowering,
    arg: OperandLike,
    dims: Dims = None,
    correction: OperandLike = 1,
    keepdim: bool = False,
) -> Node:
    return var_mean(low, arg, dims, correction, keepdim)[0]


def var_mean(
    low: Lowering,
    arg: OperandLike,
    dims: Dims = None,
    correction: OperandLike = 1,
    keepdim: bool = False,
) -> list[Node]:
    """Return variance and mean, computed in two passes."""
    x = low.tensor(arg)
    axes, dtype = reduced_axes(low, x, dims), _real_type(low, x)
    squares, mean, count = _squared_deviations(low, x, axes, dtype)
    degrees: Dim = count - low.dim(correction, "correction")
    divisor = float(max(0, degrees)) if isinstance(degrees, int) else degrees
    variance = low.builder.emit("div", (squares, Scalar(divisor)), {})
    return [_restore_dims(low, x, v, axes, keepdim, dtype) for v in (variance, mean)]


def welford(low: Lowering, arg: OperandLike, dims: Dims = None) -> list[Node]:
    """Return the mean, the sum of squared deviations from it, and the count."""
    x = low.tensor(arg)
    axes, dtype = reduced_axes(low, x, dims), _real_type(low, x)
    squares, mean, count = _squared_deviations(low, x, axes, dtype)
    number = low.builder.full(squares.shape, Scalar(count), DType.I64)
    results = [(mean, dtype), (squares, dtype), (number, DataType.Int)]
    return [_restore_dims(low, x, v, axes, False, t) for v, t in results]


def _real_type(low: Lowering, x: Node) -> DataType:
    dtype = low.promoted_type([x], to_float=True)
    if not dtype.is_float:
        raise low.error(f"it does not take {dtype.value} operands")
    return dtype


def _squared_deviations(
    low: Lowering, x: Node, axes: tuple[int, ...], dtype: DataType
) -> tuple[Value, Value, Dim]:
    """Return the sum of squared deviations from the mean, the mean, and the count."""
    value = low.convert(x.value, x.dtype, dtype)
    return *squared_deviations(low.builder, value, axes), product(x.shape[d] for d in axes)


def scan(name: str, low: Lowering, arg: OperandLike, dim: int) -> Node:
    """Scan along one dimension; half types stay, integers and bools are summed in 64 bits."""
    x = low.tensor(arg)
    axis = low.axis(dim, x.rank)
    half = x.dtype in (DataType.Half, DataType.BFloat16)
    dtype = low.promoted_type([x], keep_narrow=half)
    if dtype.is_complex and name in ("cummin", "cummax"):
        raise low.error("complex numbers have no order")
    if name in ("cumsum", "cumprod") and dtype.category < 2:
        dtype = DataType.Int
    value = low.convert(x.value, x.dtype, dtype)
    target, args = f"aten.{name}.default", (value, axis)
    if name in ("cumsum", "cumprod"):
        return low.call(target, args, x.shape, dtype)
    return low.call_results(target, args, [(x.shape, dtype)], (0,))[0]


REDUCE: dict[str, Rule] = {
    **{name: partial(reduce, name) for name in ("sum", "prod", "max", "min")},
    "var": var,
    "var_mean": var_mean,
    "welford": welford,
    **{name: partial(scan, name) for name in ("cumsum", "cumprod", "cummin", "cummax")},
}
