"""What is computed on the way lies as its readers' results do."""

from __future__ import annotations

from dataclasses import replace

from tofuse.ir.dims import hint, strides_in
from tofuse.ir.graph import Graph, Op, Value, substitute
from tofuse.ops.table import Pattern, opdef
from tofuse.passes.rewrite import exposed

Order = tuple[int, ...]

MOVABLE = frozenset({Pattern.ELEMENTWISE, Pattern.TAKE, Pattern.JOIN})  # their results
FOLLOWED = frozenset({Pattern.ELEMENTWISE, Pattern.JOIN})  # readers whose loops run over operands'


def propagate_strides(graph: Graph) -> Graph:
    """Lay results anew that nobody outside sees, where all readers agree on another order.

    Capture saw them where PyTorch would have put them, with copies between that are gone by now:
    written one way and read another, a value costs strided accesses or tiles.
    """
    fixed = exposed(graph) | {v for op in graph.ops if op.kind == "opaque" for v in op.inputs}
    readers: dict[Value, list[Op]] = {}
    for op in graph.ops:
        for v in op.inputs:
            readers.setdefault(v, []).append(op)
    laid: dict[Value, Value] = {}
    for op in reversed(graph.ops):
        if opdef(op.kind).pattern not in MOVABLE or op.result in fixed:
            continue
        order, own = _agreed(readers.get(op.result, []), laid), _order(op.result)
        if order is not None and own != (order := tuple(k for k in order if k in own)):
            strides = strides_in(_whole(order, op.result), op.result.shape)
            laid[op.result] = Value(op.result.type, op.result.name, strides)
    return _with(graph, laid) if laid else graph


def _agreed(readers: list[Op], laid: dict[Value, Value]) -> Order | None:
    """The one order in which the results of all readers lie, if there is one."""
    if any(opdef(r.kind).pattern not in FOLLOWED for r in readers):
        return None
    orders = {_order(laid.get(r.result, r.result)) for r in readers}
    return orders.pop() if len(orders) == 1 else None


def _order(value: Value) -> Order:
    """The dimensions of more than one element, the outermost first."""
    strides = [hint(s) for s in value.layout]
    long = [k for k, extent in enumerate(value.shape) if extent != 1]
    return tuple(sorted(long, key=lambda k: (-strides[k], k)))


def _whole(order: Order, value: Value) -> Order:
    """The order with all other dimensions outside."""
    return (*(k for k in range(len(value.shape)) if k not in order), *order)


def _with(graph: Graph, laid: dict[Value, Value]) -> Graph:
    ops = tuple(
        replace(
            op,
            operands=substitute(op.operands, laid),
            results=tuple(laid.get(r, r) for r in op.results),
        )
        for op in graph.ops
    )
    return replace(graph, ops=ops)
