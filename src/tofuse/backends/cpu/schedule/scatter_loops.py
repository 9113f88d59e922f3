"""The loops of a kernel that scatters: values of one element are combined on one thread."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tofuse.cost.thresholds import (
    MAX_FLAT_TASK_ELEMENTS,
    MAX_SERIAL_SCATTER_START_ELEMENTS,
    WHOLE_LINE_ELEMENTS,
)
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import Kernel, Scatter
from tofuse.ir.schedule import Loop, Schedule, Target
from tofuse.schedule.scatter_axes import combining_axes, start_stores


def vector_axes(kernel: Kernel, axes: list[str]) -> list[str]:
    """Return those of `axes` that a scatter's vectors may run along.

    Along a row of the result, one vector of values is combined with one of elements. If the result
    has no rows, vectors run along the values, whose lanes are combined one after another.
    """
    combining, scatters = combining_axes(kernel), [s for s in kernel.body if isinstance(s, Scatter)]
    rows = [
        a
        for a in axes
        if all(s.index.coefficient(a) == 1 for s in scatters) and size_hint(kernel.extent(a)) > 1
    ]
    others = [a for a in axes if a in combining]
    return rows or others or axes


def scatter_schedule(
    kernel: Kernel, vector: str, by_stride: Sequence[str], lanes: int, unroll: int, target: Target
) -> Schedule:
    """Return a schedule with vectors along an axis, of at most so many lanes and unrolled.

    `by_stride` has all axes by decreasing stride.

    Each thread has columns of its own, or other indices that the scatters do not combine. So the
    values of an element are combined in order, and its bits do not depend on the number of threads.
    """
    combining = combining_axes(kernel)
    starts = {frozenset(s.index.axes) for s in start_stores(kernel)}
    others = frozenset().union(*starts) | combining | {vector}
    shared = [a for a in by_stride if a not in others]  # threads divide these axes
    serial = [a for a in by_stride if a in combining and a != vector]  # one thread runs these
    columns, parallel, begun = size_hint(kernel.extent(vector)), [*map(Loop, shared)], list[str]()
    for axes in sorted(starts, key=sorted):
        own = [a for a in by_stride if a in axes and a != vector]
        elements = math.prod(size_hint(kernel.extent(a)) for a in own)
        if own and elements > MAX_SERIAL_SCATTER_START_ELEMENTS:
            parallel += [*map(Loop, own[:-1]), Loop(own[-1], MAX_FLAT_TASK_ELEMENTS)]
            own = own[-1:]
        begun += own
    if vector in combining:
        unroll = 1  # its lanes are combined one after another
    elif strip := _columns_per_thread(kernel, columns, shared, target):
        parallel.append(Loop(vector, strip))
        columns = strip
    while lanes > max(1, columns):
        lanes //= 2
    while unroll > 1 and lanes * unroll > columns:
        unroll //= 2
    loops = [*parallel, *map(Loop, (*begun, *serial, vector))]
    return Schedule(tuple(loops), len(parallel), lanes, unroll)


def _columns_per_thread(kernel: Kernel, columns: int, shared: list[str], target: Target) -> int:
    """Return the columns of a task, in whole cache lines; 0 for all of them."""
    tasks = math.prod(size_hint(kernel.extent(a)) for a in shared)
    each = -(-columns // max(1, target.threads // max(1, tasks)))
    strip = -(-each // WHOLE_LINE_ELEMENTS) * WHOLE_LINE_ELEMENTS
    return strip if strip < columns else 0
