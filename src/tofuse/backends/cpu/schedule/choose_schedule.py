"""Kernel -> Schedule: choose the loop order by memory stride, tiles, parallel loops and vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tofuse.backends.cpu.schedule.column_sums import column_order, jammed_column_sums
from tofuse.backends.cpu.schedule.contraction_loops import (
    contraction_axes,
    contraction_schedule,
)
from tofuse.backends.cpu.schedule.scatter_loops import scatter_schedule, vector_axes
from tofuse.backends.cpu.schedule.unroll_factor import unroll_factor
from tofuse.cost.thresholds import (
    CPU_TRANSPOSE_TILE,
    L1_PARAMETER_BYTES,
    MAX_CACHED_COLUMNS,
    MAX_COLUMNS_PER_TASK,
    MAX_FLAT_TASK_ELEMENTS,
    MAX_RECURRENCE_VECTOR_AXES,
    MIN_FLAT_TASK_ELEMENTS,
    PARAMETER_TILE,
    WHOLE_LINE_ELEMENTS,
    WORK_PER_THREAD,
)
from tofuse.cost.work import kernel_work
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import known_multiple, size_hint, static_or
from tofuse.ir.interleave import is_vectorizable_stride
from tofuse.ir.kernel import (
    CARRIED,
    WRITES,
    Compute,
    Gather,
    InRange,
    Kernel,
    Load,
    Previous,
    Reduce,
    Scatter,
    Stmt,
    Store,
    Uniform,
    iteration_axes,
)
from tofuse.ir.schedule import Loop, Schedule, Target
from tofuse.ir.types import DType
from tofuse.ops.philox import PHILOX_BLOCK
from tofuse.schedule.axis_strides import axes_by_stride, transposed_axis


def choose_schedule(kernel: Kernel, target: Target) -> Schedule:
    """Return a legal and fast schedule for a kernel."""
    return next(candidate_schedules(kernel, target))


def candidate_schedules(kernel: Kernel, target: Target) -> Iterator[Schedule]:
    """Yield legal and fast schedules for a kernel: one, or with a recurrence some.

    Their vectors run along different axes; the order of the other loops follows.
    """
    k = _summarize(kernel)
    if not kernel.axes:
        yield Schedule((), 0, 1, 1)
        return
    # steps of a recurrence are not lanes of a vector
    lane_axes = [a for a in k.by_stride if a not in k.recurrent] or list(k.by_stride)
    if k.is_scattered:
        lane_axes = vector_axes(kernel, lane_axes)
    lane_axes.sort(key=lambda a: (_vector_score(k, a), -ord(a[-1])), reverse=True)
    for vector in lane_axes[: MAX_RECURRENCE_VECTOR_AXES if k.recurrent else 1]:
        yield _schedule(k, vector, target)


def _schedule(k: _KernelSummary, vector: str, target: Target) -> Schedule:
    """Return a schedule with vectors along an axis."""
    kernel = k.kernel
    rest = [a for a in k.by_stride if a != vector]
    lanes, unroll = _lanes_and_unroll(k, vector, target)
    if k.is_scattered:
        return scatter_schedule(kernel, vector, k.by_stride, lanes, unroll, target)
    contraction = contraction_axes(kernel, vector, (*rest, vector), k.rescanned | k.scanned)
    if contraction is not None and vector in contraction.columns:
        rest = column_order(kernel, contraction)
    elif contraction is not None:
        chosen = contraction_schedule(kernel, contraction, lanes, unroll, target)
        if chosen is not None:
            return chosen
    outer = [a for a in rest if a not in k.rescanned]
    if k.scanned:  # threads share the loops around the steps, and sums of a step are inside
        outer.sort(key=lambda a: 1 if a in k.scanned else 2 * (a in k.reduced))
    inner = [a for a in rest if a in k.rescanned]
    sizes = {a: k.extent(a) for a in k.by_stride}
    indices = [] if k.reduced or target.lanes == 1 else [x.index for x in k.accesses]
    transposed = transposed_axis(indices, vector, sizes, shortest=CPU_TRANSPOSE_TILE)
    if transposed is not None:  # square tiles use each cache line while it is in the cache
        around = [Loop(a) for a in rest if a != transposed]
        shorter = min(k.extent(a) for a in (transposed, vector))
        side = CPU_TRANSPOSE_TILE if shorter < 4 * CPU_TRANSPOSE_TILE else 2 * CPU_TRANSPOSE_TILE
        # the inner tile loop runs along the transposed axis: its buffer is read in long streams
        tiles = [Loop(vector, side), Loop(transposed, side), Loop(transposed), Loop(vector)]
        return Schedule((*around, *tiles), len(around) + 1, target.lanes, 1)
    if _rereads_column_parameters(k, vector):
        inside = max(1, min(2, len(rest) - 1))
        tile = Loop(vector, PARAMETER_TILE)
        loops = [*map(Loop, rest[:-inside]), tile, *map(Loop, rest[-inside:]), Loop(vector)]
        return Schedule(tuple(loops), _parallel_loops(k, loops, target), lanes, unroll)
    strip = _vector_tile(k, vector, outer, inner, target)
    if k.recurrent and vector not in k.recurrent and not inner and k.reduced == k.recurrent:
        strip = _register_tile(k, vector, lanes * unroll, target) or strip
    if strip and _prefers_full_rows(k, vector, strip, target):
        return Schedule((*map(Loop, rest), Loop(vector)), 1, lanes, unroll)
    tile_loop = [Loop(vector, strip)] if strip else []
    loops = [*tile_loop, *map(Loop, outer), *map(Loop, inner), Loop(vector)]
    if outer and not k.reduced & set(rest):
        loops = [*map(Loop, outer), *map(Loop, inner), *tile_loop, Loop(vector)]
    parallel = _parallel_loops(k, loops, target)
    if rest and lanes > 1 and not k.scanned:
        loops = [*jammed_column_sums(kernel, loops, k.stmt_axes)]
        unroll = max(1, unroll // max(lp.jam for lp in loops))
    return Schedule(tuple(loops), parallel, lanes, unroll)


@dataclass(frozen=True)
class _Access:
    """An index of a load, gather or store, with its number of elements; stores count twice.

    `max_elements` counts the repetitions by loops of the value's users, too.
    """

    index: AffineExpr
    elements: int
    max_elements: int


@dataclass(frozen=True)
class _KernelSummary:
    """A kernel with the axes that are `reduced`, and those `rescanned` after their reduction.

    Scans and recurrences run along axes `scanned`, which are among those `reduced`; recurrences
    along those `recurrent`. `by_stride` has all axes by decreasing stride.
    """

    kernel: Kernel
    stmt_axes: Mapping[Stmt, frozenset[str]]
    rescanned: frozenset[str]
    reduced: frozenset[str]
    scanned: frozenset[str]
    recurrent: frozenset[str]
    by_stride: tuple[str, ...]
    accesses: tuple[_Access, ...]

    @property
    def is_scattered(self) -> bool:
        return any(isinstance(s, Scatter) for s in self.kernel.body)

    def extent(self, axis: str) -> int:
        """Return the extent of an axis, or its size hint."""
        return size_hint(self.kernel.extent(axis))


def _summarize(kernel: Kernel) -> _KernelSummary:
    _, stmt_axes = iteration_axes(kernel)
    reduced_before: dict[str, frozenset[str]] = {}  # axes reduced in the history of each value
    rescanned: set[str] = set()
    reduced: set[str] = set()
    scanned: set[str] = set()
    for s in kernel.body:
        history = frozenset().union(*(reduced_before[u] for u in s.uses))
        rescanned |= history & stmt_axes[s]
        if isinstance(s, Reduce):
            reduced |= set(s.over)
            history |= frozenset(s.over)
        if isinstance(s, CARRIED):
            scanned.add(s.axis)
        if not isinstance(s, WRITES):
            reduced_before[s.name] = history
    points = {s: math.prod(size_hint(kernel.extent(a)) for a in stmt_axes[s]) for s in kernel.body}
    user_points: dict[str, int] = {}  # the most iterations of a user of each value
    for user, name in ((s, u) for s in kernel.body for u in s.uses):
        user_points[name] = max(user_points.get(name, 0), points[user])
    accesses = tuple(
        _Access(s.index, 2 * points[s], 2 * points[s])
        if isinstance(s, WRITES)
        else _Access(s.index, points[s], max(points[s], user_points.get(s.name, 0)))
        for s in kernel.body
        if isinstance(s, (Load, *WRITES, Gather))
    )
    by_stride = tuple(axes_by_stride(kernel, [(x.index, x.elements) for x in accesses]))
    return _KernelSummary(
        kernel,
        stmt_axes,
        frozenset(rescanned),
        frozenset(reduced | scanned),
        frozenset(scanned),
        frozenset(s.axis for s in kernel.body if isinstance(s, Previous)),
        by_stride,
        accesses,
    )


def _vector_score(k: _KernelSummary, axis: str) -> float:
    """Return a score of an axis for vectors: higher for contiguous accesses and long axes."""
    score = 0.0
    for x in k.accesses:
        step = x.index.coefficient(axis)
        if step == 1:
            score += x.elements
        elif is_vectorizable_stride(step, CPU_TRANSPOSE_TILE):
            score += x.elements / 2
        elif step != 0:
            score -= x.max_elements
    most = max((x.elements for x in k.accesses if x.elements > 0), default=1) or 1
    return score / most * 4 + min(k.extent(axis), 64) / 16 + k.by_stride.index(axis) / 64


def _lanes_and_unroll(k: _KernelSummary, vector: str, target: Target) -> tuple[int, int]:
    """Return the lanes of a vector, and the unroll factor."""
    body = k.kernel.body
    wide = any(
        s.dtype in (DType.F64, DType.I64) and vector in k.stmt_axes[s]
        for s in body
        if isinstance(s, (Load, Store, Compute))
    )
    narrow = any(
        s.dtype not in (DType.F64, DType.I64, DType.BOOL) and vector in k.stmt_axes[s]
        for s in body
        if isinstance(s, (Load, Store))
    )
    if vector in k.recurrent:
        return 1, 1
    lanes = max(1, target.lanes // 2) if wide and not narrow else target.lanes
    unroll = unroll_factor(k.kernel, k.stmt_axes, vector)
    if any(_has_aligned_philox_blocks(s, vector) for s in body if isinstance(s, Uniform)):
        unroll = max(1, PHILOX_BLOCK // lanes)
    extent = k.kernel.extent(vector)
    bounds = [b for s in body if isinstance(s, InRange) for b in _guard_bounds(s, vector)]
    while unroll > 1 and any(b % (lanes * unroll) and not b % lanes for b in bounds):
        unroll //= 2  # so that no unrolled iteration crosses the bound of a guard
    if isinstance(extent, int):
        while unroll > 1 and extent <= lanes * (unroll // 2):
            unroll //= 2
    return lanes, unroll


def _guard_bounds(s: InRange, axis: str) -> list[int]:
    """Return the static positions along an axis where a guard starts and stops to pass."""
    if s.index.coefficient(axis) != 1:
        return []
    bounds = [b + s.index.const * -1 for b in (s.lo, s.hi)]
    return [b for b in bounds if isinstance(b, int)]


def _has_aligned_philox_blocks(u: Uniform, vector: str) -> bool:
    """Whether aligned blocks of 64 elements along the vector axis are Philox blocks."""
    others = [c for a, c in u.col.terms if a != vector] + [u.col.const]
    return u.col.coefficient(vector) == 1 and all(known_multiple(c, PHILOX_BLOCK) for c in others)


def _rereads_column_parameters(k: _KernelSummary, vector: str) -> bool:
    """Whether each row reads more per-column parameters than stay in the L1 cache until the next.

    The parameters are, for example, the weights of a depthwise convolution for each channel.
    """
    extent = k.extent(vector)
    if k.reduced or len(k.by_stride) < 2 or extent <= 2 * PARAMETER_TILE:
        return False
    loads = {s for s in k.kernel.body if isinstance(s, Load) and k.stmt_axes[s] == {vector}}
    return len(loads) > 2 and sum(s.dtype.itemsize for s in loads) * extent > L1_PARAMETER_BYTES


def _vector_tile(
    k: _KernelSummary, vector: str, outer: list[str], inner: list[str], target: Target
) -> int:
    """Return the tile size of the vector axis; 0 if it is not tiled."""
    extent = size_hint(k.kernel.extent(vector), 1 << 20)
    if vector in k.scanned:
        return 0
    if not outer and not inner:
        most = max(MIN_FLAT_TASK_ELEMENTS, int(WORK_PER_THREAD / kernel_work(k.kernel)))
        return min(MAX_FLAT_TASK_ELEMENTS, 1 << (most.bit_length() - 1))
    if vector in k.rescanned:
        return 0
    others = [a for a in (*outer, *inner) if a in k.reduced]
    if others and vector not in k.reduced:
        return _column_tile(k, vector, extent, outer, inner, target)
    if (
        vector in k.reduced
        and static_or(k.kernel.extent(vector), 1 << 20) > 2 * MAX_FLAT_TASK_ELEMENTS
    ):
        return _even_tile(extent)
    rows = math.prod(k.extent(a) for a in outer or inner[:1])
    return (
        _even_tile(extent) if rows < 4 * target.threads and extent > MAX_FLAT_TASK_ELEMENTS else 0
    )


def _register_tile(k: _KernelSummary, vector: str, elements: int, target: Target) -> int:
    """Return a tile of `elements`, whose states stay in registers; 0 if it is no gain.

    If all accesses exceed the caches, long rows read memory faster.
    """
    extent = k.kernel.extent(vector)
    read = sum(abs(x.elements) for x in k.accesses)
    is_cached = 4 * read <= target.l2_bytes * target.threads  # 4 bytes: a float
    divides = isinstance(extent, int) and extent > elements and extent % elements == 0
    return elements if is_cached and divides else 0


def _even_tile(extent: int) -> int:
    """Return the elements of a task: an even number of tasks, all of nearly the same length.

    Their length does not depend on the number of threads, nor do the bits of a sum over a tile.
    """
    tasks = -(-extent // (2 * MAX_FLAT_TASK_ELEMENTS)) * 2
    return -(-extent // (tasks * WHOLE_LINE_ELEMENTS)) * WHOLE_LINE_ELEMENTS


def _column_tile(
    k: _KernelSummary, vector: str, extent: int, outer: list[str], inner: list[str], target: Target
) -> int:
    """Return the number of columns per task if reductions run over other axes; 0 for all."""
    once = (s for s in k.kernel.body if isinstance(s, (Store, Reduce)))
    if not all(vector in k.stmt_axes[s] for s in once):
        return 0  # each task would repeat the statements that do not depend on the column
    tasks = math.prod(k.extent(a) for a in outer if a not in k.reduced)
    per_thread = -(-extent // max(1, target.threads // max(1, tasks)))
    if per_thread < 64 and not inner:
        return 0
    random = any(isinstance(s, Uniform) for s in k.kernel.body)
    unit = PHILOX_BLOCK if per_thread >= PHILOX_BLOCK or random else WHOLE_LINE_ELEMENTS
    rows = math.prod(k.extent(a) for a in (*outer, *inner) if a in k.reduced)
    reads_memory_once = not k.rescanned or 8 * extent * rows <= target.l2_bytes
    widest = MAX_CACHED_COLUMNS if reads_memory_once else MAX_COLUMNS_PER_TASK
    return min(widest, -(-per_thread // unit) * unit)


def _prefers_full_rows(k: _KernelSummary, vector: str, strip: int, target: Target) -> bool:
    """Whether columns that are reduced and rescanned are walked in full rows, not in tiles.

    If a tile does not fit in the L2 cache, it is read from memory twice anyway, and the hardware
    prefetcher does not predict its short rows.
    """
    rest = frozenset(k.by_stride) - {vector}
    if not rest or k.reduced != rest or k.rescanned != rest or k.scanned:
        return False
    rows, columns = math.prod(map(k.extent, rest)), k.extent(vector)
    if columns > MAX_CACHED_COLUMNS or 8 * rows * min(strip, columns) <= target.l2_bytes:
        return False  # 8 bytes: a float read and a float written
    return target.threads > 1 or columns > strip


def _parallel_loops(k: _KernelSummary, loops: list[Loop], target: Target) -> int:
    """Return how many of the outermost loops are parallel."""
    rows, count = 1, 0
    for n, loop in enumerate(loops):
        last = n == len(loops) - 1 or loop.axis in k.scanned
        if last or (loop.axis in k.rescanned and count) or rows >= 4 * target.threads:
            break
        if count and loop.axis in k.reduced:
            break
        extent = k.extent(loop.axis)
        rows *= -(-extent // loop.strip) if loop.strip else extent
        count += 1
    return count
