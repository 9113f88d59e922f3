"""Rules for reductions; half precision accumulates in float32 and is rounded once, at the end."""

from __future__ import annotations

from tofuse.capture.lower.builder import Builder, Unsupported, opmath_dtype
from tofuse.capture.lower.call import AtenCall, LoweringRule
from tofuse.ir.dims import Dim, product
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.types import DType, TensorType


def sum_or_prod(kind: str) -> LoweringRule:
    """Return the rule of sum or prod in the result's dtype; for bool results, any or all."""

    def rule(call: AtenCall) -> Value:
        x, out = call.tensor("self"), call.out
        reduction = {"sum": "any", "prod": "all"}[kind] if out.dtype == DType.BOOL else kind
        total = call.build.reduce(reduction, x, _dims(call, x), opmath_dtype(out.dtype))
        return _finish(call.build, x, total, out)

    return rule


def extremum(kind: str) -> LoweringRule:
    """Return the rule of amax or amin; for bools, any or all."""

    def rule(call: AtenCall) -> Value:
        x = call.tensor("self")
        return _finish(call.build, x, _extremum(call.build, kind, x, _dims(call, x)), call.out)

    return rule


def extremum_and_index(kind: str, index_kind: str) -> LoweringRule:
    """Return the rule of max.dim or min.dim: the extremum and its first index."""

    def rule(call: AtenCall) -> tuple[Value, ...]:
        x = call.tensor("self")
        values, indices = (call.type_of(t) for t in call.node.meta["val"])
        dims = (call.dim("dim", len(x.shape)),) if x.shape else ()
        value = _extremum(call.build, kind, x, dims)
        index = _arg_extremum(call.build, index_kind, x, dims)
        return _finish(call.build, x, value, values), _finish(call.build, x, index, indices)

    return rule


def argmax_or_argmin(kind: str) -> LoweringRule:
    def rule(call: AtenCall) -> Value:
        x = call.tensor("self")
        index = _arg_extremum(call.build, kind, x, _dims(call, x))
        return _finish(call.build, x, index, call.out)

    return rule


def any_or_all(kind: str) -> LoweringRule:
    """Return the rule of any or all; ATen returns uint8 for uint8."""

    def rule(call: AtenCall) -> Value:
        x = call.build.convert(call.tensor("self"), DType.BOOL)
        result = call.build.reduce(kind, x, _dims(call, x), DType.BOOL)
        return _finish(call.build, x, result, call.out)

    return rule


def mean(call: AtenCall) -> Value:
    x, out = call.tensor("self"), call.out
    dims = _dims(call, x)
    return _finish(call.build, x, _mean(call.build, x, dims, opmath_dtype(out.dtype)), out)


def variance(call: AtenCall) -> Value:
    x = call.tensor("self")
    return _finish(call.build, x, _variance(call, x)[0], call.out)


def standard_deviation(call: AtenCall) -> Value:
    x = call.tensor("self")
    root = call.build.emit("sqrt", (_variance(call, x)[0],), {})
    return _finish(call.build, x, root, call.out)


def variance_and_mean(call: AtenCall) -> tuple[Value, ...]:
    x = call.tensor("self")
    types = [call.type_of(t) for t in call.node.meta["val"]]
    results = _variance(call, x)
    return tuple(_finish(call.build, x, r, t) for r, t in zip(results, types, strict=True))


def standard_deviation_and_mean(call: AtenCall) -> tuple[Value, ...]:
    x = call.tensor("self")
    std_type, mean_type = (call.type_of(t) for t in call.node.meta["val"])
    variance, mean = _variance(call, x)
    root = call.build.emit("sqrt", (variance,), {})
    return _finish(call.build, x, root, std_type), _finish(call.build, x, mean, mean_type)


def _variance(call: AtenCall, x: Value) -> tuple[Value, Value]:
    """Return variance and mean in two passes: the mean, then the squared differences from it."""
    build, dims = call.build, _dims(call, x)
    if not x.dtype.is_float:
        raise Unsupported("a variance of integers")
    wide = build.convert(x, opmath_dtype(x.dtype))
    mean = _mean(build, wide, dims, wide.dtype)
    kept = tuple(k for k in range(len(x.shape)) if k not in dims)
    difference = build.emit("sub", (wide, build.broadcast(mean, x.shape, kept)), {})
    square = build.emit("mul", (difference, difference), {})
    total = build.reduce("sum", square, dims, wide.dtype)
    divisor = _degrees_of_freedom(call, _count(x, dims))
    return build.emit("div", (total, divisor), {}), mean


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


def _mean(build: Builder, x: Value, dims: tuple[int, ...], dtype: DType) -> Value:
    count = _count(x, dims)
    total = build.reduce("sum", x, dims, dtype)
    divisor = Scalar(float(count) if isinstance(count, int) else count)
    return build.emit("div", (total, divisor), {})


def _extremum(build: Builder, kind: str, x: Value, dims: tuple[int, ...]) -> Value:
    if any(x.shape[d] == 0 for d in dims):
        raise Unsupported("the extremum of an empty dimension")
    if x.dtype == DType.BOOL:
        kind = {"amax": "any", "amin": "all"}[kind]
    return build.reduce(kind, x, dims, x.dtype)


def _arg_extremum(build: Builder, kind: str, x: Value, dims: tuple[int, ...]) -> Value:
    if any(x.shape[d] == 0 for d in dims):
        raise Unsupported("the index of an extremum of an empty dimension")
    if not dims:
        return build.full(x.shape, Scalar(0), DType.I64)
    if x.dtype == DType.BOOL:
        x = build.convert(x, DType.U8)
    return build.reduce(kind, x, dims, DType.I64)


def _finish(build: Builder, x: Value, result: Value, out: TensorType) -> Value:
    """Round to the result's dtype and restore kept dimensions."""
    final = build.reshape(build.convert(result, out.dtype), out.shape)
    return build.copy(final) if final is x else final


def _dims(call: AtenCall, x: Value) -> tuple[int, ...]:
    if not x.shape:
        return ()
    return call.dims("dim", len(x.shape))


def _count(x: Value, dims: tuple[int, ...]) -> Dim:
    return product(x.shape[d] for d in dims)


REDUCTION_RULES: dict[str, LoweringRule] = {
    "aten.sum": sum_or_prod("sum"),
    "aten.prod": sum_or_prod("prod"),
    "aten.amax": extremum("amax"),
    "aten.amin": extremum("amin"),
    "aten.max.default": extremum("amax"),
    "aten.min.default": extremum("amin"),
    "aten.max.dim": extremum_and_index("amax", "argmax"),
    "aten.min.dim": extremum_and_index("amin", "argmin"),
    "aten.argmax": argmax_or_argmin("argmax"),
    "aten.argmin": argmax_or_argmin("argmin"),
    "aten.any": any_or_all("any"),
    "aten.all": any_or_all("all"),
    "aten.mean": mean,
    "aten.var": variance,
    "aten.std": standard_deviation,
    "aten.var_mean": variance_and_mean,
    "aten.std_mean": standard_deviation_and_mean,
}
