"""Graph -> Graph: short rows of neighbours in memory are begun and ended by ops of their own.

Where channels lie last and come in groups, a kernel that needs a number of each group keeps the
channels of a group apart from the groups: vectors run along neither. Two steps leave room for a
cut between kernels (`weigh.py`): a sum over groups and places is one for each channel first, and a
number of a group is one for each of its channels first. In one kernel they cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tofuse.analysis.alias import is_view, view_storage
from tofuse.ir.dims import Dim, hint, product
from tofuse.ir.graph import Attr, Graph, Names, Op, Value
from tofuse.ir.region import Strided
from tofuse.ir.types import DType
from tofuse.ops.result_types import make_op
from tofuse.ops.table import Pattern, opdef

LONG = 64  # neighbours that vectors run along well enough
MANY = 8  # elements for each one that is made on the way, at least
SUMS = frozenset({"sum", "prod", "amax", "amin", "any", "all"})
Strides = tuple[Dim, ...]


def neighbours(graph: Graph) -> Graph:
    """Reductions and broadcasts of short rows in two steps, where the next dimension goes on."""
    lie = _places(graph)
    readers = graph.users()
    names = Names(graph)
    ops: list[Op] = []
    spread: dict[tuple[Value, tuple[int, ...]], Value] = {}
    for op in graph.ops:
        steps = None
        if op.kind in SUMS and op.result.type.device == "cpu":
            steps = _summed(op, lie, names)
        elif op.kind == "broadcast" and op.result.type.device == "cpu":
            flat = [r for r in readers.get(op.result, ()) if _is_flat(r)]
            steps = _spread(op, flat, lie, names, spread)
        ops += [op] if steps is None else steps
    return graph if len(ops) == len(graph.ops) else replace(graph, ops=tuple(ops))


class _Row(NamedTuple):
    """Dimensions that follow each other from one neighbour on, and how many elements they have."""

    dims: tuple[int, ...]
    extent: int


def _row(shape: tuple[Dim, ...], strides: Strides, dims: frozenset[int]) -> _Row | None:
    """The short row of `dims` whose next dimension in memory is another one and goes on."""
    long = [k for k, extent in enumerate(shape) if extent != 1]
    order = sorted(long, key=lambda k: (hint(strides[k]), -k))
    found: list[int] = []
    count = 1
    for k in order:
        if strides[k] != count:
            return None
        if k not in dims:
            return _Row(tuple(sorted(found)), count) if 1 < count < LONG else None
        extent = shape[k]
        if not isinstance(extent, int):
            return None
        found.append(k)
        count *= extent
    return None


def _summed(op: Op, lie: Mapping[Value, Strides], names: Names) -> list[Op] | None:
    """Places first, the neighbours of a row last."""
    (x,), dims = op.inputs, op.ints("dims")
    row = _row(x.shape, lie[x], frozenset(dims)) if x in lie else None
    if row is None:
        return None
    first = tuple(d for d in dims if d not in row.dims)
    if hint(product(x.shape[d] for d in first)) < MANY:
        return None
    dtype = op.result.dtype
    wide = DType.F32 if dtype.is_narrow and op.kind in ("sum", "prod") else dtype
    left = [d for d in range(len(x.shape)) if d not in first]
    last = tuple(left.index(d) for d in row.dims)
    each = _made(
        op, op.kind, x, {"dims": first, "dtype": wide}, names.fresh(f"{op.result.name}_each")
    )
    whole = make_op(op.kind, (each.result,), {"dims": last, "dtype": dtype}, name="", like=op)
    return [each, replace(whole, results=op.results)]


def _spread(
    op: Op,
    readers: list[Op],
    lie: Mapping[Value, Strides],
    names: Names,
    spread: dict[tuple[Value, tuple[int, ...]], Value],
) -> list[Op] | None:
    """The neighbours of a row first, places last."""
    (x,), shape, dims = op.inputs, op.result.shape, op.ints("dims")
    lacks = frozenset(range(len(shape))) - set(dims)
    strides = next((lie[r.result] for r in readers), None)
    row = None if strides is None else _row(shape, strides, lacks)
    if row is None or hint(product(shape[d] for d in lacks)) < MANY * row.extent:
        return None
    some = tuple(sorted({*dims, *row.dims}))
    steps: list[Op] = []
    if (x, some) not in spread:
        inner: dict[str, Attr] = {
            "shape": tuple(shape[d] for d in some),
            "dims": tuple(map(some.index, dims)),
        }
        steps.append(_made(op, "broadcast", x, inner, names.fresh(f"{op.result.name}_each")))
        (wide,) = steps[0].results
        steps.append(
            _made(op, "convert", wide, {"dtype": x.dtype}, names.fresh(f"{op.result.name}_each"))
        )
        spread[x, some] = steps[1].result
    whole = _made(op, "broadcast", spread[x, some], {"shape": shape, "dims": some}, "")
    return [*steps, replace(whole, results=op.results)]


def _made(op: Op, kind: str, x: Value, attrs: dict[str, Attr], name: str) -> Op:
    return make_op(kind, (x,), attrs, name=name, like=op)


def _is_flat(op: Op) -> bool:
    return opdef(op.kind).pattern is Pattern.ELEMENTWISE


def _places(graph: Graph) -> dict[Value, Strides]:
    """The strides by which loops run over values: elementwise results are taken to lie as what
    they are made of."""
    lie = {v: v.layout for v in graph.inputs}
    for op in graph.ops:
        if is_view(op):
            (x,) = op.inputs
            place = view_storage(op, Strided(x, 0, lie[x])) if x in lie else None
            if place is not None:
                lie[op.result] = place.strides
            continue
        lie |= {r: r.layout for r in op.results}
        if _is_flat(op):
            whole = (lie[x] for x in op.inputs if x in lie and _is_whole(x.shape, lie[x]))
            lie[op.result] = next(whole, op.result.layout)
    return lie


def _is_whole(shape: tuple[Dim, ...], strides: Strides) -> bool:
    return all(s != 0 or extent == 1 for extent, s in zip(shape, strides, strict=True))
