"""Rules for ATen ops that combine values in elements selected by an index: sums by group."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.capture.lower.builder import Unsupported
from tofuse.capture.lower.call import AtenCall, LoweringRule
from tofuse.cost.thresholds import MIN_SCATTERED_VALUES_PER_ELEMENT
from tofuse.ir.dims import product, size_hint
from tofuse.ir.graph import Attr, Scalar, Value
from tofuse.ir.types import DType
from tofuse.ops.table import REDUCTION_COMBINES, reduction_identity


@dataclass(frozen=True)
class _Scatter:
    """Values to combine with elements of `start`: `index` selects them in dimension `dim`.

    `start` is ATen's `self`. Values are combined with each other first, then with `start`. Negative
    indices count from the end if `wrap`.
    """

    call: AtenCall
    start: Value
    dim: int
    index: Value
    values: Value
    wrap: bool = False

    def reduce(self, op: str, *, include_start: bool = True) -> Value:
        """Return `start` with the values combined.

        Unless `include_start`, an element with values is their combination alone.
        """
        return self.call.build.convert(self._reduce_wide(op, include_start), self.start.dtype)

    def mean(self, *, include_start: bool) -> Value:
        """Return the means of the values of each element, and of its start if that is included."""
        build, dtype = self.call.build, self.start.dtype
        if not dtype.is_float:
            raise Unsupported("a mean of integers by index")
        total = self._reduce_wide("sum", include_start)
        count = self._count("sum", total.dtype, Scalar(1.0 if include_start else 0.0))
        if not include_start:  # an element without values keeps its start
            count = build.emit("maximum", (count, Scalar(1.0)), {})
        return build.convert(build.emit("div", (total, count), {}), dtype)

    def _reduce_wide(self, op: str, include_start: bool) -> Value:
        """Return the combinations; sums and products of half precision are not rounded."""
        build, dtype = self.call.build, self.start.dtype
        wide = dtype.opmath if op in ("sum", "prod") else dtype
        values, start = (build.convert(x, wide) for x in (self.values, self.start))
        constant = build.constants.get(self.start)
        if include_start and constant is not None:
            return self._emit(op, values, constant)
        if include_start and op == "prod":  # without the start, it may overflow
            raise Unsupported("products by index with a start")
        if include_start:
            combined = self._emit(op, values, Scalar(_neutral(op, wide)))
            return build.emit(REDUCTION_COMBINES[op], (start, combined), {})
        combined = self._emit(op, values, Scalar(reduction_identity(op, wide)))
        has_values = self._count("any", DType.BOOL, Scalar(False))
        return build.where(has_values, combined, start, start.type)

    def _count(self, op: str, dtype: DType, start: Scalar) -> Value:
        """Return the combination of `start` and a one for each value of an element.

        If one index selects whole lines, as the rows of a matrix, a one for each line.
        """
        build, shape = self.call.build, self.start.shape
        made_by = next((op for op in reversed(build.ops) if self.index in op.results), None)
        if made_by is None or made_by.kind != "broadcast" or made_by.ints("dims") != (self.dim,):
            ones = build.full(self.values.shape, Scalar(1), dtype)
            return self._emit(op, ones, start)
        (lines,) = made_by.inputs
        line = build.full(shape[self.dim : self.dim + 1], start, dtype)
        ones = build.full(lines.shape, Scalar(1), dtype)
        counted = _Scatter(self.call, line, 0, lines, ones, self.wrap)._emit(op, ones, start)
        return build.broadcast(counted, shape, (self.dim,))

    def _emit(self, op: str, values: Value, start: Scalar) -> Value:
        attrs: dict[str, Attr] = {
            "dim": self.dim,
            "reduce": op,
            "start": start.value,
            "shape": self.start.shape,
            "wrap": self.wrap,
        }
        return self.call.build.emit("scatter_reduce", (values, self.index), attrs)


def _neutral(op: str, dtype: DType) -> float | int:
    """Return the number that changes no value which it is combined with, nor its sign."""
    return -0.0 if op == "sum" and dtype.is_float else reduction_identity(op, dtype)


def _checked(s: _Scatter) -> _Scatter:
    """Return the argument if a kernel is no slower than PyTorch's operator.

    The operator does less with few values: it changes `start`, or a copy of it.
    """
    start, values = s.start, s.values
    if not start.type.on_host or start.dtype in (DType.BOOL, DType.OTHER) or start.dtype.is_fp8:
        raise Unsupported("a combination by index of this type")
    if values.dtype != start.dtype or len(values.shape) != len(start.shape) or not start.shape:
        raise Unsupported("values of another type or rank than the result")
    elements, count = (size_hint(product(x.shape)) for x in (start, values))
    if not elements or count < MIN_SCATTERED_VALUES_PER_ELEMENT * elements:
        raise Unsupported("a combination of fewer values than elements")
    return s


def index_add(call: AtenCall) -> Value:
    x, values, alpha = call.tensor("self"), call.tensor("source"), call.number("alpha")
    dim = call.dim("dim", len(x.shape))
    index = _index_of_lines(call, call.tensor("index"), values, dim)
    s = _checked(_Scatter(call, x, dim, index, values))
    if alpha != 1:
        scaled = call.build.emit("mul", (values, Scalar(alpha)), {})
        s = _Scatter(call, x, dim, index, scaled)
    return s.reduce("sum")


def scatter_add(call: AtenCall) -> Value:
    return _elements(call).reduce("sum")


def scatter_reduce(call: AtenCall) -> Value:
    op, include_start = call.arguments["reduce"], call.flag("include_self")
    if op == "mean":
        return _elements(call).mean(include_start=include_start)
    if op not in ("sum", "prod", "amax", "amin"):
        raise Unsupported(f"the reduction {op} by index")
    return _elements(call).reduce(str(op), include_start=include_start)


def add_by_index(call: AtenCall) -> Value:
    """Lower `x[:, index] += y`, with one index of integers."""
    x, y, indices = call.tensor("self"), call.tensor("values"), call.optional_tensors("indices")
    tensors = [(d, i) for d, i in enumerate(indices) if i is not None]
    if not call.arguments.get("accumulate") or len(tensors) != 1:
        raise Unsupported("elements replaced by index, or by several")
    ((dim, index),) = tensors
    if index.dtype not in (DType.I32, DType.I64) or y.dtype != x.dtype:
        raise Unsupported("an index of this type: uint8 is a mask")
    before, after, build = x.shape[:dim], x.shape[dim + 1 :], call.build
    count = product(index.shape)
    values = build.expand(y, (*before, *index.shape, *after))
    values = build.reshape(values, (*before, count, *after))
    index = _index_of_lines(call, build.reshape(index, (count,)), values, dim)
    return _checked(_Scatter(call, x, dim, index, values, wrap=True)).reduce("sum")


def _elements(call: AtenCall) -> _Scatter:
    """Return the scatter of an operator whose index has an element for each value."""
    x, index, values = call.tensor("self"), call.tensor("index"), call.tensor("src")
    if len(index.shape) != len(values.shape):
        raise Unsupported("an index of another rank than the values")
    for d, extent in enumerate(index.shape):
        values = call.build.slice(values, d, 0, extent)
    return _checked(_Scatter(call, x, call.dim("dim", len(x.shape)), index, values))


def _index_of_lines(call: AtenCall, index: Value, values: Value, dim: int) -> Value:
    """Return an index of whole lines as one with an element for each value."""
    if not values.shape or product(index.shape) != values.shape[dim]:
        raise Unsupported("an index of another length than the values")
    flat = call.build.reshape(index, (values.shape[dim],))
    return call.build.broadcast(flat, values.shape, (dim,))


SCATTER_REDUCE_RULES: dict[str, LoweringRule] = {
    "aten.index_add": index_add,
    "aten.scatter_add": scatter_add,
    "aten.scatter_reduce": scatter_reduce,
}
