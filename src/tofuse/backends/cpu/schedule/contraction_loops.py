"""Loops of kernels with contractions: sums along vectors, of factors with axes of their own.

The largest factor is read once: the loops over its axes are the outer ones. Several iterations of
inner and outer loops run at the same time. A vector of one factor, once in a register, then serves
several vectors of the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tofuse.cost.thresholds import (
    CONTRACTION_TASKS_PER_THREAD,
    JAMMED_SUM_REGISTER_SHARE,
    MAX_CONTRACTION_STRIP_COLUMNS,
    MAX_JAMMED_COLUMNS,
    MAX_JAMMED_ROWS,
    MAX_KERNEL_STATEMENTS,
)
from tofuse.ir.dims import product, size_hint
from tofuse.ir.kernel import Gather, Kernel, Load, Reduce, Stmt, Uniform, iteration_axes
from tofuse.ir.schedule import Loop, Schedule, Target


@dataclass(frozen=True)
class ContractionAxes:
    """The axes of sums, outermost first.

    All factors have those of `batch`, the largest one has `columns` and lacks `rows`. The sums run
    over `depth`.
    """

    batch: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    depth: tuple[str, ...]


def contraction_axes(
    kernel: Kernel, vector: str, order: Sequence[str], rescanned: frozenset[str]
) -> ContractionAxes | None:
    """Return the axes of the contractions whose depth or columns include the vector axis.

    None if there are none. `order` has all axes of the kernel, outermost first. A later pass reads
    the axes `rescanned` once more; a kernel with such axes has no contraction here.
    """
    value_axes, stmt_axes = iteration_axes(kernel)
    sums = [s for s in kernel.body if isinstance(s, Reduce)]
    if rescanned or not sums or any(isinstance(s, Uniform) for s in kernel.body):
        return None
    if any(s.op != "sum" or not s.dtype.is_float for s in sums):
        return None
    if len({(frozenset(s.over), value_axes[s.name]) for s in sums}) > 1:
        return None
    outer, depth = value_axes[sums[0].name], frozenset(sums[0].over)
    along = frozenset((vector,)) if vector in depth else depth
    loads = (s for s in kernel.body if isinstance(s, Load | Gather))
    factors = [s for s in loads if stmt_axes[s] & along]
    if any(stmt_axes[s] - outer - depth for s in kernel.body):
        return None
    largest = max(factors, key=lambda s: _nbytes(kernel, s, stmt_axes), default=None)
    if largest is None:
        return None
    batch = frozenset.intersection(*(stmt_axes[s] & outer for s in factors))
    columns = stmt_axes[largest] & outer - batch
    rows = outer - batch - columns
    if not columns or vector in rows | batch:
        return None

    def ordered(axes: frozenset[str]) -> tuple[str, ...]:
        return tuple(a for a in order if a in axes)

    return ContractionAxes(ordered(batch), ordered(columns), ordered(rows), ordered(depth))


def contraction_schedule(
    kernel: Kernel, axes: ContractionAxes, lanes: int, unroll: int, target: Target
) -> Schedule | None:
    """Return the loops of contractions: tiles of columns for threads, then columns and rows.

    None if that leaves threads without work.
    """
    jam_rows, jam_columns = _jams(kernel, axes, lanes, target)
    *outer, innermost = axes.columns
    columns = size_hint(kernel.extent(innermost))
    strip = 0 if outer else _strip(columns, jam_columns, target)
    around = [Loop(a) for a in (*axes.batch, *outer)]
    tasks = math.prod(size_hint(kernel.extent(lp.axis)) for lp in around)
    if tasks * (-(-columns // strip) if strip else 1) < target.threads:
        return None
    around += [Loop(innermost, strip)] if strip else []
    rows = [Loop(a) for a in axes.rows[:-1]]
    rows += [Loop(axes.rows[-1], jam=jam_rows)] if axes.rows else []
    depth = [Loop(a) for a in axes.depth]
    loops = (*around, Loop(innermost, jam=jam_columns), *rows, *depth)
    return Schedule(loops, len(around), lanes, max(1, unroll // (jam_rows * jam_columns)))


def _jams(kernel: Kernel, axes: ContractionAxes, lanes: int, target: Target) -> tuple[int, int]:
    """Return how many rows and columns run at the same time: equal groups that registers hold."""
    rows = size_hint(kernel.extent(axes.rows[-1])) if axes.rows else 1
    if rows == 1:  # each row of the large factor is one stream of memory
        return 1, 1
    sums = [s for s in kernel.body if isinstance(s, Reduce)]
    wide = any(s.dtype.itemsize == 8 for s in sums) and lanes == target.lanes
    registers = int(target.registers * JAMMED_SUM_REGISTER_SHARE)
    registers = max(1, registers // len(sums) // (2 if wide else 1))
    most = min(MAX_JAMMED_ROWS, registers, max(1, MAX_KERNEL_STATEMENTS // len(kernel.body)))
    jam_rows = max(1, -(-rows // max(1, -(-rows // most))))
    columns = size_hint(kernel.extent(axes.columns[-1]))
    jam_columns = min(MAX_JAMMED_COLUMNS, registers // jam_rows, columns)
    jam_columns = min(jam_columns, MAX_KERNEL_STATEMENTS // (len(kernel.body) * jam_rows))
    return jam_rows, max(1, jam_columns)


def _strip(columns: int, jam: int, target: Target) -> int:
    """Return the columns of a task: a few tasks for each thread, of a multiple of the jam."""
    tasks = CONTRACTION_TASKS_PER_THREAD * target.threads
    wanted = min(MAX_CONTRACTION_STRIP_COLUMNS, columns // tasks)
    return max(1, wanted // jam) * jam


def _nbytes(kernel: Kernel, s: Load | Gather, stmt_axes: Mapping[Stmt, frozenset[str]]) -> int:
    itemsize = next(b.dtype.itemsize for b in kernel.buffers if b.name == s.buffer)
    return itemsize * size_hint(product(kernel.extent(a) for a in sorted(stmt_axes[s])))
