"""Rules for reductions; half precision accumulates in float32 and is rounded once, at the end."""

from __future__ import annotations

from collections.abc import Callable

from tofuse.capture.lower.builder import Builder, Unsupported
from tofuse.capture.lower.call import AtenCall, LoweringRule
from tofuse.ir.dims import Dim, product
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.types import DType

Dims = tuple[int, ...]
# From a call, its operand and the reduced dimensions to the results without kept dimensions.
Reduction = Callable[[AtenCall, Value, Dims], tuple[Value, ...]]


def reduction(compute: Reduction) -> LoweringRule:
    """Return the rule that rounds computed results to torch's dtypes and restores dimensions."""

    def rule(call: AtenCall) -> Value | tuple[Value, ...]:
        x, value = call.tensor("self"), call.node.meta["val"]
        dims = call.dims("dim", len(x.shape)) if x.shape else ()
        single = not isinstance(value, (list, tuple))
        types = [call.type_of(t) for t in ([value] if single else value)]
        results = tuple(
            call.build.reshape(call.build.convert(r, t.dtype), t.shape)
            for r, t in zip(compute(call, x, dims), types, strict=True)
        )
        return results[0] if single else results

    return rule


def sum_or_prod(kind: str) -> Reduction:
    """Return the sum or product in the result's dtype; for bool results, any or all."""

    def compute(call: AtenCall, x: Value, dims: Dims) -> tuple[Value, ...]:
        dtype = call.out.dtype
        name = {"sum": "any", "prod": "all"}[kind] if dtype == DType.BOOL else kind
        return (call.build.reduce(name, x, dims, dtype.opmath),)

    return compute


def extremum(kind: str, index_kind: str = "") -> Reduction:
    """Return the extremum, for bools any or all, and its first index if `index_kind` is given."""

    def compute(call: AtenCall, x: Value, dims: Dims) -> tuple[Value, ...]:
        _require_elements(x, dims)
        name = {"amax": "any", "amin": "all"}[kind] if x.dtype == DType.BOOL else kind
        value = call.build.reduce(name, x, dims, x.dtype)
        ordered = call.build.convert(x, DType.U8) if x.dtype == DType.BOOL else x
        return (value, *arg_extremum(index_kind)(call, ordered, dims)) if index_kind else (value,)

    return compute


def arg_extremum(kind: str) -> Reduction:
    """Return the first index of the maximum or minimum."""

    def compute(call: AtenCall, x: Value, dims: Dims) -> tuple[Value, ...]:
        _require_elements(x, dims)
        if x.dtype == DType.BOOL:
            raise Unsupported("an index of the greatest bool, which is an error")
        if not dims:
            return (call.build.full(x.shape, Scalar(0), DType.I64),)
        return (call.build.reduce(kind, x, dims, DType.I64),)

    return compute


def any_or_all(kind: str) -> Reduction:
    """Return any or all; ATen returns uint8 for uint8."""

    def compute(call: AtenCall, x: Value, dims: Dims) -> tuple[Value, ...]:
        return (call.build.reduce(kind, call.build.convert(x, DType.BOOL), dims, DType.BOOL),)

    return compute


def mean(call: AtenCall, x: Value, dims: Dims) -> tuple[Value, ...]:
    return (_mean(call.build, x, dims, call.out.dtype.opmath),)


def variance(*, root: bool = False, with_mean: bool = False) -> Reduction:
    """Return the variance or its root in two passes: the mean, then the squared differences."""

    def compute(call: AtenCall, x: Value, dims: Dims) -> tuple[Value, ...]:
        build = call.build
        if not x.dtype.is_float:
            raise Unsupported("a variance of integers")
        wide = build.convert(x, x.dtype.opmath)
        total, mean = squared_deviations(build, wide, dims)
        divisor = _degrees_of_freedom(call, _count(x, dims))
        result = build.emit("div", (total, divisor), {})
        result = build.emit("sqrt", (result,), {}) if root else result
        return (result, mean) if with_mean else (result,)

    return compute


def squared_deviations(build: Builder, x: Value, dims: Dims) -> tuple[Value, Value]:
    """Return the sum of squared deviations from the mean, and the mean."""
    mean = _mean(build, x, dims, x.dtype)
    kept = tuple(k for k in range(len(x.shape)) if k not in dims)
    deviation = build.emit("sub", (x, build.broadcast(mean, x.shape, kept)), {})
    square = build.emit("mul", (deviation, deviation), {})
    return build.reduce("sum", square, dims, x.dtype), mean


def _degrees_of_freedom(call: AtenCall, count: Dim) -> Scalar:
    """Return count - correction, at least zero: division by zero gives nan or inf, as in ATen."""
    if call.has("correction"):
        correction = call.number("correction")
    elif "unbiased" in call.arguments:
        correction = int(call.flag("unbiased"))
    else:
        correction = 1
    if isinstance(count, int) and isinstance(correction, (int, float)):
        return Scalar(float(max(0, count - correction)))
    if isinstance(correction, (bool, int)) and correction in (0, 1):
        return Scalar(count - int(correction))
    raise Unsupported("a correction of a symbolic count")


def _mean(build: Builder, x: Value, dims: Dims, dtype: DType) -> Value:
    count = _count(x, dims)
    total = build.reduce("sum", x, dims, dtype)
    divisor = Scalar(float(count) if isinstance(count, int) else count)
    return build.emit("div", (total, divisor), {})


def _require_elements(x: Value, dims: Dims) -> None:
    if any(x.shape[d] == 0 for d in dims):
        raise Unsupported("the extremum of an empty dimension")


def _count(x: Value, dims: Dims) -> Dim:
    return product(x.shape[d] for d in dims)


REDUCTIONS: dict[str, Reduction] = {
    "aten.sum": sum_or_prod("sum"),
    "aten.prod": sum_or_prod("prod"),
    "aten.amax": extremum("amax"),
    "aten.amin": extremum("amin"),
    "aten.max.default": extremum("amax"),
    "aten.min.default": extremum("amin"),
    "aten.max.dim": extremum("amax", "argmax"),
    "aten.min.dim": extremum("amin", "argmin"),
    "aten.argmax": arg_extremum("argmax"),
    "aten.argmin": arg_extremum("argmin"),
    "aten.any": any_or_all("any"),
    "aten.all": any_or_all("all"),
    "aten.mean": mean,
    "aten.var": variance(),
    "aten.std": variance(root=True),
    "aten.var_mean": variance(with_mean=True),
    "aten.std_mean": variance(root=True, with_mean=True),
}
REDUCTION_RULES = {name: reduction(compute) for name, compute in REDUCTIONS.items()}
