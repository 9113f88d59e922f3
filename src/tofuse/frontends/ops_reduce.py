"""Reductions and scans; halves accumulate in Float and stay so."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tofuse.frontends.datatypes import DataType, datatype
from tofuse.frontends.lowering import Given, Lowering, Node, Number, Rule, located
from tofuse.ir.dims import Dim, SymDim, product
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.types import DType

Dims = int | Sequence[Given] | None


def reduction(name: str) -> Rule:
    """sum, prod, max, min over `dims`, or over all; `dtype` is that of the computation."""

    def rule(
        low: Lowering,
        arg: Given,
        dims: Dims = None,
        keepdim: bool = False,
        dtype: DataType | torch.dtype = DataType.Null,
    ) -> Node:
        x = low.tensor(arg)
        over = axes(low, x, dims)
        kind, target = _computed(low, name, x, datatype(dtype))
        value = low.convert(x.value, x.dtype, target)
        if target.ir is DType.OTHER:
            return _by_pytorch(low, name, value, over, keepdim, target)
        if name in ("max", "min"):
            _demand_elements(low, x, over)
        return _finish(
            low, x, low.build.reduce(kind, value, over, target.ir), over, keepdim, target
        )

    return rule


def _demand_elements(low: Lowering, x: Node, over: tuple[int, ...]) -> None:
    """There is no largest of no elements; what is not known yet is checked in each run."""
    count, message = product(x.shape[d] for d in over), "there is no largest or smallest element"
    if count == 0:
        raise low.fail(message)
    if isinstance(count, SymDim):
        low.positive.append((count, located(low.op, low.build.loc, message)))


def _computed(low: Lowering, name: str, x: Node, dtype: DataType) -> tuple[str, DataType]:
    """The graph's kind and the type: sums of integers and bools are 64-bit."""
    target = low.promoted([x]) if dtype is DataType.Null else dtype
    if dtype is DataType.Null and name in ("sum", "prod") and target.category < 2:
        target = DataType.Int
    if name in ("sum", "prod"):
        return name, target
    if target.is_complex:
        raise low.fail("complex numbers have no order")
    if target is DataType.Bool:
        return {"max": "any", "min": "all"}[name], target
    return f"a{name}", target


def _by_pytorch(
    low: Lowering, name: str, value: Value, over: tuple[int, ...], keepdim: bool, dtype: DataType
) -> Node:
    shape = tuple(
        1 if d in over else e for d, e in enumerate(value.shape) if keepdim or d not in over
    )
    if name == "prod" or dtype is DataType.UInt64:
        raise low.fail(f"it does not take {dtype.value} operands")
    made = low.opaque(
        "aten.sum.dim_IntList", f"$0, {list(over)}, {keepdim}", (value,), shape, dtype
    )
    return low.node(made, dtype)


def axes(low: Lowering, x: Node, dims: Dims) -> tuple[int, ...]:
    """The dimensions to reduce, sorted; None means all."""
    if dims is None:
        return tuple(range(x.rank))
    given = [dims] if isinstance(dims, (int, Number)) else list(dims)
    found = [low.axis(d, x.rank, "an entry of dims") for d in given]
    if len(set(found)) != len(found):
        raise low.fail(f"dims {list(given)} name a dimension twice")
    return tuple(sorted(found)) if x.rank else ()


def _finish(
    low: Lowering,
    x: Node,
    result: Value,
    over: tuple[int, ...],
    keepdim: bool,
    dtype: DataType,
) -> Node:
    """Put kept dimensions back."""
    if keepdim:
        shape = tuple(1 if d in over else e for d, e in enumerate(x.shape))
        result = low.build.reshape(result, shape)
    return low.node(low.build.copy(result) if result is x.value else result, dtype)


def var(
    low: Lowering, arg: Given, dims: Dims = None, correction: Given = 1, keepdim: bool = False
) -> Node:
    return moments(low, arg, dims, correction, keepdim)[0]


def var_mean(
    low: Lowering, arg: Given, dims: Dims = None, correction: Given = 1, keepdim: bool = False
) -> list[Node]:
    return moments(low, arg, dims, correction, keepdim)


def moments(low: Lowering, arg: Given, dims: Dims, correction: Given, keepdim: bool) -> list[Node]:
    """Variance and mean, in two passes."""
    x = low.tensor(arg)
    over, dtype = axes(low, x, dims), _real_type(low, x)
    squares, centre, count = _squares(low, x, over, dtype)
    less = low.dim(correction, "correction")
    freedom: Dim = count - less
    divisor = float(max(0, freedom)) if isinstance(freedom, int) else freedom
    spread = low.build.emit("div", (squares, Scalar(divisor)), {})
    return [_finish(low, x, v, over, keepdim, dtype) for v in (spread, centre)]


def welford(low: Lowering, arg: Given, dims: Dims = None) -> list[Node]:
    """Mean, sum of squared differences from it, and count."""
    x = low.tensor(arg)
    over, dtype = axes(low, x, dims), _real_type(low, x)
    squares, centre, count = _squares(low, x, over, dtype)
    number = low.build.full(squares.shape, Scalar(count), DType.I64)
    found = [(centre, dtype), (squares, dtype), (number, DataType.Int)]
    return [_finish(low, x, v, over, False, t) for v, t in found]


def _real_type(low: Lowering, x: Node) -> DataType:
    dtype = low.promoted([x], to_float=True)
    if not dtype.is_float:
        raise low.fail(f"it does not take {dtype.value} operands")
    return dtype


def _squares(
    low: Lowering, x: Node, over: tuple[int, ...], dtype: DataType
) -> tuple[Value, Value, Dim]:
    """The sum of squared differences from the mean, the mean, and the count."""
    build, value = low.build, low.convert(x.value, x.dtype, dtype)
    count = product(x.shape[d] for d in over)
    divisor = Scalar(float(count) if isinstance(count, int) else count)
    centre = build.emit("div", (build.reduce("sum", value, over, dtype.ir), divisor), {})
    kept = tuple(d for d in range(x.rank) if d not in over)
    away = build.emit("sub", (value, build.broadcast(centre, x.shape, kept)), {})
    squares = build.reduce("sum", build.emit("mul", (away, away), {}), over, dtype.ir)
    return squares, centre, count


def scan(name: str) -> Rule:
    """A running result along one dimension, by PyTorch."""

    def rule(low: Lowering, arg: Given, dim: int) -> Node:
        x = low.tensor(arg)
        at = low.axis(dim, x.rank)
        dtype = low.promoted([x])
        if name in ("cumsum", "cumprod") and dtype.category < 2:
            dtype = DataType.Int
        value = low.convert(x.value, x.dtype, dtype)
        target, text = f"aten.{name}.default", f"$0, {at}"
        if name in ("cumsum", "cumprod"):
            return low.node(low.opaque(target, text, (value,), x.shape, dtype), dtype)
        (best,) = low.opaques(target, text, (value,), [(x.shape, dtype)], (0,))
        return low.node(best, dtype)

    return rule


REDUCE: dict[str, Rule] = {
    **{name: reduction(name) for name in ("sum", "prod", "max", "min")},
    "var": var,
    "var_mean": var_mean,
    "welford": welford,
    **{name: scan(name) for name in ("cumsum", "cumprod", "cummin", "cummax")},
}
