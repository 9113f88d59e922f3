"""Graph -> Graph: split reductions and broadcasts along short innermost dimensions in two steps.

With channels innermost and in groups, a kernel that needs one number per group keeps the channels
of a group and the groups as separate axes, and vectors run well along neither. In two steps, a sum
over a group and all positions is first one sum per channel, and a number per group is first
broadcast to its channels. `partition/profitability.py` may then put the steps into two kernels.
In one kernel the extra step costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tofuse.analysis.alias import MemRef, is_view, view_memref
from tofuse.cost.target_costs import CostsOf
from tofuse.cost.thresholds import LONG_ROW, MIN_SPLIT_RATIO
from tofuse.ir.dims import Dim, product, size_hint, stride_order
from tofuse.ir.graph import Attr, Graph, Names, Op, Value
from tofuse.ops.result_types import make_op
from tofuse.ops.table import OPS, Pattern

SPLITTABLE_REDUCTIONS = frozenset({"sum", "prod", "amax", "amin", "any", "all"})
SPLITTABLE = SPLITTABLE_REDUCTIONS | {"broadcast"}
Strides = tuple[Dim, ...]


def split_reductions(graph: Graph, costs_of: CostsOf) -> Graph:
    """Split reductions and broadcasts of short rows whose next dimension continues them."""
    loop_strides = _loop_strides(graph)
    users = graph.users()
    names = Names(graph)
    ops: list[Op] = []
    broadcasts: dict[_Broadcast, Value] = {}
    for op in graph.ops:
        steps = None
        if op.kind not in SPLITTABLE or not costs_of(op.result.type.device).splits_reductions:
            pass
        elif op.kind in SPLITTABLE_REDUCTIONS:
            steps = _split_reduction(op, loop_strides, names)
        else:
            readers = [r for r in users.get(op.result, ()) if _is_elementwise(r)]
            steps = _split_broadcast(op, readers, loop_strides, names, broadcasts)
        ops += [op] if steps is None else steps
    return graph if len(ops) == len(graph.ops) else replace(graph, ops=tuple(ops))


class _Broadcast(NamedTuple):
    """The first step of a broadcast."""

    source: Value
    shape: tuple[Dim, ...]
    dims: tuple[int, ...]


class _Row(NamedTuple):
    """Innermost dimensions that are contiguous, and their number of elements."""

    dims: tuple[int, ...]
    extent: int


def _short_row(shape: tuple[Dim, ...], strides: Strides, dims: frozenset[int]) -> _Row | None:
    """Return the short row of `dims` that a dimension outside of `dims` continues in memory."""
    found: list[int] = []
    count = 1
    for k in reversed([k for k in stride_order(strides) if shape[k] != 1]):
        if strides[k] != count:
            return None
        if k not in dims:
            return _Row(tuple(sorted(found)), count) if 1 < count < LONG_ROW else None
        extent = shape[k]
        if not isinstance(extent, int):
            return None
        found.append(k)
        count *= extent
    return None


def _split_reduction(
    op: Op, loop_strides: Mapping[Value, Strides], names: Names
) -> list[Op] | None:
    """Reduce the outer dimensions first and the short row last."""
    (x,), dims = op.inputs, op.ints("dims")
    row = _short_row(x.shape, loop_strides[x], frozenset(dims)) if x in loop_strides else None
    if row is None:
        return None
    outer = tuple(d for d in dims if d not in row.dims)
    if size_hint(product(x.shape[d] for d in outer)) < MIN_SPLIT_RATIO:
        return None
    dtype = op.result.dtype
    partial_dtype = dtype.opmath if op.kind in ("sum", "prod") else dtype
    remaining = [d for d in range(len(x.shape)) if d not in outer]
    row_dims = tuple(remaining.index(d) for d in row.dims)
    attrs: dict[str, Attr] = {"dims": outer, "dtype": partial_dtype}
    partial = make_op(op.kind, (x,), attrs, name=names.fresh(f"{op.result.name}_each"), like=op)
    return [partial, op.redefined(op.kind, partial.result, dims=row_dims, dtype=dtype)]


def _split_broadcast(
    op: Op,
    readers: list[Op],
    loop_strides: Mapping[Value, Strides],
    names: Names,
    broadcasts: dict[_Broadcast, Value],
) -> list[Op] | None:
    """Broadcast along the short row first and along the outer dimensions last."""
    (x,), shape, dims = op.inputs, op.result.shape, op.ints("dims")
    new_dims = frozenset(range(len(shape))) - set(dims)
    strides = next((loop_strides[r.result] for r in readers), None)
    row = None if strides is None else _short_row(shape, strides, new_dims)
    if row is None or size_hint(product(shape[d] for d in new_dims)) < MIN_SPLIT_RATIO * row.extent:
        return None
    inner_dims = tuple(sorted({*dims, *row.dims}))
    first = _Broadcast(x, tuple(shape[d] for d in inner_dims), tuple(map(inner_dims.index, dims)))
    steps: list[Op] = []
    if first not in broadcasts:
        attrs: dict[str, Attr] = {"shape": first.shape, "dims": first.dims}
        name = f"{op.result.name}_each"
        inner = make_op("broadcast", (x,), attrs, name=names.fresh(name), like=op)
        attrs = {"dtype": x.dtype}
        # a copy that may be stored: kernels can be split there
        stored = make_op("convert", (inner.result,), attrs, name=names.fresh(name), like=op)
        steps = [inner, stored]
        broadcasts[first] = stored.result
    last = op.redefined("broadcast", broadcasts[first], shape=shape, dims=inner_dims)
    return [*steps, last]


def _is_elementwise(op: Op) -> bool:
    return OPS[op.kind].pattern is Pattern.ELEMENTWISE


def _loop_strides(graph: Graph) -> dict[Value, Strides]:
    """Return the strides that loops over each value follow.

    An elementwise result is assumed to be stored like an operand that is not broadcast.
    """
    found = {v: v.layout for v in graph.inputs}
    for op in graph.ops:
        if is_view(op):
            (x,) = op.inputs
            memref = view_memref(op, MemRef(x, 0, found[x])) if x in found else None
            if memref is not None:
                found[op.result] = memref.strides
            continue
        found |= {r: r.layout for r in op.results}
        if _is_elementwise(op):
            full = (found[x] for x in op.inputs if x in found and _has_no_repeats(x, found[x]))
            found[op.result] = next(full, op.result.layout)
    return found


def _has_no_repeats(x: Value, strides: Strides) -> bool:
    return all(s != 0 or extent == 1 for extent, s in zip(x.shape, strides, strict=True))
