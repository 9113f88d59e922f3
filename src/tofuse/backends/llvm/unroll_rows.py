"""Several rows at once where columns are reduced: their sum goes to the array, not each of them."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.dims import fixed
from tofuse.ir.kernel import Compute, Iota, Load, Reduce, Store
from tofuse.ir.nest import Do, For, Nest

AT_ONCE = 4  # rows: of a load, an addition and a store in the cache, the last two are shared
MOST = 6  # statements of a row, all of whose values are held in registers


@dataclass(frozen=True)
class Rows:
    """The axis whose next `count` indices are taken together."""

    axis: str
    count: int


def rows_at_once(nest: Nest, node: For) -> Rows | None:
    """The rows to take together in a loop around a vector loop that only adds to arrays."""
    (inner, *more), axis = node.body, node.loop.axis
    if more or not isinstance(inner, For) or inner.reductions or inner.ahead or node.loop.strip:
        return None
    vector = nest.schedule.loops[-1]
    if inner.loop is not vector or nest.schedule.vector == 1:
        return None
    found = [n.stmt for n in inner.body if isinstance(n, Do)]
    plain = all(
        (isinstance(s, Load) and s.guard is None)
        or isinstance(s, (Compute, Iota))
        or (isinstance(s, Reduce) and _in_columns(s, axis, vector.axis))
        for s in found
    )
    saved = any(not isinstance(s, Store) and s.name in nest.saved for s in found)
    fits = plain and not saved and len(found) == len(inner.body) <= MOST
    long = fixed(nest.kernel.extent(axis), 1 << 20) >= 4 * AT_ONCE
    return Rows(axis, AT_ONCE) if fits and long else None


def _in_columns(r: Reduce, axis: str, vector: str) -> bool:
    return axis in r.over and vector not in r.over and r.position is None
