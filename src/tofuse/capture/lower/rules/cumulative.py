"""Rules for cumulative operators."""

from __future__ import annotations

from tofuse.capture.lower.builder import Unsupported
from tofuse.capture.lower.call import AtenCall, LoweringRule
from tofuse.ir.graph import Attr, Scalar, Value
from tofuse.ir.types import DType


def scan(kind: str) -> LoweringRule:
    """Return the rule of a running sum or product."""

    def rule(call: AtenCall) -> Value:
        return _scan(call, kind, call.build.convert(call.tensor("self"), call.out.dtype))

    return rule


def logcumsumexp(call: AtenCall) -> Value:
    return _scan(call, "logcumsumexp", call.tensor("self"))


def running_extremum(kind: str) -> LoweringRule:
    """Return the rule of a running maximum or minimum. It applies if no op reads the indices."""

    def rule(call: AtenCall) -> tuple[Value, ...]:
        _, indices = (call.type_of(t) for t in call.node.meta["val"])
        x = call.tensor("self")
        if not call.reads_only_first:
            raise Unsupported("the indices of a running extremum")
        if x.dtype is DType.BOOL:
            raise Unsupported("a running extremum of booleans")
        found = _scan(call, kind, x)
        return found, call.build.full(indices.shape, Scalar(0), indices.dtype)

    return rule


def _scan(call: AtenCall, kind: str, x: Value) -> Value:
    if not x.type.on_host:
        raise Unsupported("a cumulative operator on a GPU")
    if not x.shape:  # of one element
        return call.build.copy(x)
    attrs: dict[str, Attr] = {"dim": call.dim("dim", len(x.shape)), "reverse": False}
    return call.build.emit(kind, (x,), attrs)


CUMULATIVE_RULES: dict[str, LoweringRule] = {
    "aten.cumsum": scan("cumsum"),
    "aten.cumprod": scan("cumprod"),
    "aten.logcumsumexp": logcumsumexp,
    "aten.cummax": running_extremum("cummax"),
    "aten.cummin": running_extremum("cummin"),
}
