"""Loops of sums whose columns are contiguous: vectors of several rows are added at once.

The sums of a tile of columns stay in the L1 cache. Several rows of a factor are added in registers
first, so that the sums are read and written once for all of them; each row is a stream of memory of
its own. If a row of a factor serves several rows of the result, these are computed at once as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tofuse.backends.cpu.schedule.contraction_loops import ContractionAxes
from tofuse.cost.thresholds import (
    COLUMN_SUM_ROWS_AT_ONCE,
    MAX_JAMMED_COLUMN_SUM_STATEMENTS,
    MAX_JAMMED_ROWS,
    MAX_RESULT_ROWS_INSIDE_DEPTH,
)
from tofuse.ir.dims import size_hint, static_or
from tofuse.ir.kernel import Gather, InRange, Kernel, Load, Reduce, Stmt, Uniform
from tofuse.ir.schedule import Loop


def column_order(kernel: Kernel, axes: ContractionAxes) -> list[str]:
    """Return the order of the loops around the vector loop, if vectors run along columns.

    If the rows are few, their loops are inside those of the depth: each vector of the largest
    factor is then read once.
    """
    *columns, _ = axes.columns
    rows = math.prod(size_hint(kernel.extent(a)) for a in axes.rows)
    inner, outer = (axes.rows, ()) if rows <= MAX_RESULT_ROWS_INSIDE_DEPTH else ((), axes.rows)
    return [*axes.batch, *outer, *columns, *axes.depth, *inner]


def jammed_column_sums(
    kernel: Kernel, loops: Sequence[Loop], stmt_axes: Mapping[Stmt, frozenset[str]]
) -> tuple[Loop, ...]:
    """Return the loops, with the factors of unroll-and-jam of those around the vector loop.

    The last loop runs in vectors.
    """
    *outer, around, columns = loops
    sums = [s for s in kernel.body if isinstance(s, Reduce)]
    if not sums or any(columns.axis in s.over or s.position is not None for s in sums):
        return tuple(loops)
    if any(isinstance(s, Uniform) for s in kernel.body):
        return tuple(loops)  # random numbers come in blocks of many columns
    depth = {a for s in sums for a in s.over}
    if around.axis in depth:
        return (*outer, _jammed_depth(kernel, around, depth, None, stmt_axes), columns)
    vectors = (s for s in kernel.body if columns.axis in stmt_axes[s])
    shares_a_vector = any(
        isinstance(s, Load | Gather) and around.axis not in stmt_axes[s] for s in vectors
    )
    if not shares_a_vector or around.strip or not outer or outer[-1].axis not in depth:
        return tuple(loops)
    rows = static_or(kernel.extent(around.axis), 1)
    most = min(MAX_JAMMED_ROWS, max(1, MAX_JAMMED_COLUMN_SUM_STATEMENTS // len(kernel.body)))
    around = replace(around, jam=-(-rows // -(-rows // most)) if rows else 1)
    return (
        *outer[:-1],
        _jammed_depth(kernel, outer[-1], depth, around, stmt_axes),
        around,
        columns,
    )


def _jammed_depth(
    kernel: Kernel,
    loop: Loop,
    depth: Collection[str],
    row_loop: Loop | None,
    stmt_axes: Mapping[Stmt, frozenset[str]],
) -> Loop:
    """Return the innermost loop over the depth of sums: several iterations at once.

    One at a time if the sums are short or loads are guarded. `row_loop` is the loop inside it, if
    there is one.
    """
    own = [s for s in kernel.body if loop.axis in stmt_axes[s]]
    has_guards = any(isinstance(s, InRange) or (isinstance(s, Load) and s.guard) for s in own)
    terms = math.prod(static_or(kernel.extent(a), 1 << 20) for a in depth)
    if loop.strip or has_guards or terms < 4 * COLUMN_SUM_ROWS_AT_ONCE:
        return loop
    copies = sum(row_loop.jam if row_loop and row_loop.axis in stmt_axes[s] else 1 for s in own)
    jam = min(COLUMN_SUM_ROWS_AT_ONCE, static_or(kernel.extent(loop.axis), COLUMN_SUM_ROWS_AT_ONCE))
    jam = max(1, min(jam, MAX_JAMMED_COLUMN_SUM_STATEMENTS // copies))
    return replace(loop, jam=1 << (jam.bit_length() - 1))
