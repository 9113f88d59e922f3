"""Rules for reductions: halves accumulate in float32 and are rounded once, at the end."""

from __future__ import annotations

from tofuse.capture.lower.builder import Builder, Refused
from tofuse.capture.lower.call import Call, Rule
from tofuse.ir.dims import Dim, product
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.types import DType, TensorType


def accumulate(kind: str) -> Rule:
    """sum and prod, in the result's dtype; into bools, any and all."""

    def rule(call: Call) -> Value:
        x, out = call.tensor("self"), call.out
        found = {"sum": "any", "prod": "all"}[kind] if out.dtype == DType.BOOL else kind
        total = call.build.reduce(found, x, _dims(call, x), _wide(out.dtype))
        return _finish(call.build, x, total, out)

    return rule


def extreme(kind: str) -> Rule:
    """amax and amin; of bools, any and all."""

    def rule(call: Call) -> Value:
        x = call.tensor("self")
        return _finish(call.build, x, _extreme(call.build, kind, x, _dims(call, x)), call.out)

    return rule


def with_index(kind: str, index_kind: str) -> Rule:
    """max.dim and min.dim: the extreme and where it is first."""

    def rule(call: Call) -> tuple[Value, ...]:
        x = call.tensor("self")
        values, indices = (call.type_of(t) for t in call.node.meta["val"])
        dims = (call.dim("dim", len(x.shape)),) if x.shape else ()
        found = _extreme(call.build, kind, x, dims)
        place = _argument(call.build, index_kind, x, dims)
        return _finish(call.build, x, found, values), _finish(call.build, x, place, indices)

    return rule


def argument(kind: str) -> Rule:
    def rule(call: Call) -> Value:
        x = call.tensor("self")
        place = _argument(call.build, kind, x, _dims(call, x))
        return _finish(call.build, x, place, call.out)

    return rule


def truth(kind: str) -> Rule:
    """any and all; ATen gives uint8 for uint8."""

    def rule(call: Call) -> Value:
        x = call.build.convert(call.tensor("self"), DType.BOOL)
        found = call.build.reduce(kind, x, _dims(call, x), DType.BOOL)
        return _finish(call.build, x, found, call.out)

    return rule


def mean(call: Call) -> Value:
    x, out = call.tensor("self"), call.out
    dims = _dims(call, x)
    return _finish(call.build, x, _mean(call.build, x, dims, _wide(out.dtype)), out)


def variance(call: Call) -> Value:
    x = call.tensor("self")
    return _finish(call.build, x, _variance(call, x)[0], call.out)


def deviation(call: Call) -> Value:
    x = call.tensor("self")
    root = call.build.emit("sqrt", (_variance(call, x)[0],), {})
    return _finish(call.build, x, root, call.out)


def variance_and_mean(call: Call) -> tuple[Value, ...]:
    x = call.tensor("self")
    types = [call.type_of(t) for t in call.node.meta["val"]]
    results = _variance(call, x)
    return tuple(_finish(call.build, x, r, t) for r, t in zip(results, types, strict=True))


def deviation_and_mean(call: Call) -> tuple[Value, ...]:
    x = call.tensor("self")
    first, second = (call.type_of(t) for t in call.node.meta["val"])
    spread, centre = _variance(call, x)
    root = call.build.emit("sqrt", (spread,), {})
    return _finish(call.build, x, root, first), _finish(call.build, x, centre, second)


def _variance(call: Call, x: Value) -> tuple[Value, Value]:
    """Two passes: the mean, then the mean square of what is left; both without the `dims`."""
    build, dims = call.build, _dims(call, x)
    if not x.dtype.is_float:
        raise Refused("a variance of integers")
    wide = build.convert(x, _wide(x.dtype))
    centre = _mean(build, wide, dims, wide.dtype)
    kept = tuple(k for k in range(len(x.shape)) if k not in dims)
    spread = build.emit("sub", (wide, build.broadcast(centre, x.shape, kept)), {})
    squares = build.reduce("sum", build.emit("mul", (spread, spread), {}), dims, wide.dtype)
    freedom = _freedom(call, _count(x, dims))
    return build.emit("div", (squares, freedom), {}), centre


def _freedom(call: Call, count: Dim) -> Scalar:
    """Count less correction, at least zero: a division by zero then gives nan or inf, as ATen."""
    if call.given("correction"):
        correction = call.number("correction")
    elif "unbiased" in call.arguments:
        correction = int(call.flag("unbiased"))
    else:
        correction = 1
    if isinstance(count, int) and isinstance(correction, (int, float)):
        return Scalar(float(max(0, count - correction)))
    if isinstance(correction, (bool, int)) and correction in (0, 1):
        return Scalar(count - int(correction))
    raise Refused("a correction of a count that is not fixed")


def _mean(build: Builder, x: Value, dims: tuple[int, ...], dtype: DType) -> Value:
    count = _count(x, dims)
    total = build.reduce("sum", x, dims, dtype)
    divisor = Scalar(float(count) if isinstance(count, int) else count)
    return build.emit("div", (total, divisor), {})


def _extreme(build: Builder, kind: str, x: Value, dims: tuple[int, ...]) -> Value:
    if any(x.shape[d] == 0 for d in dims):
        raise Refused("the extreme of nothing")
    if x.dtype == DType.BOOL:
        kind = {"amax": "any", "amin": "all"}[kind]
    return build.reduce(kind, x, dims, x.dtype)


def _argument(build: Builder, kind: str, x: Value, dims: tuple[int, ...]) -> Value:
    if any(x.shape[d] == 0 for d in dims):
        raise Refused("the place of nothing")
    if not dims:
        return build.full(x.shape, Scalar(0), DType.I64)
    if x.dtype == DType.BOOL:
        x = build.convert(x, DType.U8)
    return build.reduce(kind, x, dims, DType.I64)


def _finish(build: Builder, x: Value, result: Value, out: TensorType) -> Value:
    """Round to the result's dtype and put kept dimensions back."""
    final = build.reshape(build.convert(result, out.dtype), out.shape)
    return build.copy(final) if final is x else final


def _dims(call: Call, x: Value) -> tuple[int, ...]:
    if not x.shape:
        return ()
    return call.dims("dim", len(x.shape))


def _count(x: Value, dims: tuple[int, ...]) -> Dim:
    return product(x.shape[d] for d in dims)


def _wide(dtype: DType) -> DType:
    return DType.F32 if dtype.is_narrow else dtype


REDUCTIONS: dict[str, Rule] = {
    "aten.sum": accumulate("sum"),
    "aten.prod": accumulate("prod"),
    "aten.amax": extreme("amax"),
    "aten.amin": extreme("amin"),
    "aten.max.default": extreme("amax"),
    "aten.min.default": extreme("amin"),
    "aten.max.dim": with_index("amax", "argmax"),
    "aten.min.dim": with_index("amin", "argmin"),
    "aten.argmax": argument("argmax"),
    "aten.argmin": argument("argmin"),
    "aten.any": truth("any"),
    "aten.all": truth("all"),
    "aten.mean": mean,
    "aten.var": variance,
    "aten.std": deviation,
    "aten.var_mean": variance_and_mean,
    "aten.std_mean": deviation_and_mean,
}
