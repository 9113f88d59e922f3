"""Give intermediate values the stride order of their users' results."""

from __future__ import annotations

from tofuse.analysis.alias import AliasAnalysis
from tofuse.ir.dims import stride_order, strides_in
from tofuse.ir.graph import Graph, Op, Value, substitute_values
from tofuse.ops.table import OPS, Pattern

DimOrder = tuple[int, ...]

RESTRIDABLE = frozenset({Pattern.ELEMENTWISE, Pattern.GATHER, Pattern.CONCAT})
FOLLOWED_USERS = frozenset({Pattern.ELEMENTWISE, Pattern.CONCAT})  # read in their results' order


def propagate_strides(graph: Graph) -> Graph:
    """Change the strides of private results if all users have results in another stride order.

    Captured strides are those of eager, whose layout copies earlier passes have removed. A value
    that is written in one order and read in another costs strided accesses or a tiled transpose.
    """
    aliases, users = AliasAnalysis(graph), graph.users()
    fixed = aliases.escaping | aliases.read_by_library
    restrided: dict[Value, Value] = {}
    for op in reversed(graph.ops):
        if OPS[op.kind].pattern not in RESTRIDABLE or op.result in fixed:
            continue
        order = _common_user_order(users.get(op.result, []), restrided)
        current = _dim_order(op.result)
        if order is not None and current != (order := tuple(k for k in order if k in current)):
            unit_dims = (k for k in range(len(op.result.shape)) if k not in order)
            strides = strides_in((*unit_dims, *order), op.result.shape)
            restrided[op.result] = Value(op.result.type, op.result.name, strides)
    return substitute_values(graph, restrided) if restrided else graph


def _common_user_order(users: list[Op], restrided: dict[Value, Value]) -> DimOrder | None:
    """Return the stride order that the results of all users share, if there is one."""
    if any(OPS[op.kind].pattern not in FOLLOWED_USERS for op in users):
        return None
    orders = {_dim_order(restrided.get(op.result, op.result)) for op in users}
    return orders.pop() if len(orders) == 1 else None


def _dim_order(value: Value) -> DimOrder:
    """Return the dimensions larger than 1 by decreasing stride."""
    return tuple(k for k in stride_order(value.layout) if value.shape[k] != 1)
