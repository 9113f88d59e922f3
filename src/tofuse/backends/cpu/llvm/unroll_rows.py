"""Column reductions: a loop over rows takes several rows in one iteration."""

from __future__ import annotations

from tofuse.cost.thresholds import MAX_REDUCED_ROW_STATEMENTS, REDUCED_ROWS
from tofuse.ir.dims import static_or
from tofuse.ir.kernel import Compute, Iota, Load, Reduce, Store
from tofuse.ir.nest import For, Nest, StmtNode


def unrolls_rows(nest: Nest, node: For) -> bool:
    """Return whether a loop around a vector loop that only adds to arrays takes several rows."""
    (inner, *more), axis = node.body, node.loop.axis
    if more or not isinstance(inner, For) or inner.reductions or inner.prefetch or node.loop.strip:
        return False
    vector_loop = nest.schedule.loops[-1]
    if inner.loop is not vector_loop or nest.schedule.vector == 1:
        return False
    stmts = [n.stmt for n in inner.body if isinstance(n, StmtNode)]
    is_supported = all(
        (isinstance(s, Load) and s.guard is None)
        or isinstance(s, (Compute, Iota))
        or (isinstance(s, Reduce) and _is_column_reduction(s, axis, vector_loop.axis))
        for s in stmts
    )
    spills = any(not isinstance(s, Store) and s.name in nest.spills for s in stmts)
    is_small = len(stmts) == len(inner.body) <= MAX_REDUCED_ROW_STATEMENTS
    is_long = static_or(nest.kernel.extent(axis), 1 << 20) >= 4 * REDUCED_ROWS
    return is_supported and not spills and is_small and is_long


def _is_column_reduction(r: Reduce, axis: str, vector_axis: str) -> bool:
    return axis in r.over and vector_axis not in r.over and r.position is None
