"""Kernel -> Schedule: loop order by memory stride, rows where reductions need them, vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tofuse.cost.work import WORK_PER_THREAD, kernel_work
from tofuse.ir.dims import fixed, hint, known_multiple
from tofuse.ir.interleave import is_spaced
from tofuse.ir.kernel import (
    Affine,
    Compute,
    Inside,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    Take,
    Uniform,
    iteration_axes,
)
from tofuse.ir.schedule import Loop, Schedule, Target
from tofuse.ir.types import DType
from tofuse.schedule.unroll import vectors_at_once

STRIP = 4096  # elements a task of a flat loop; a few microseconds of work, or fewer elements
FEWEST = 64
TILE = 16  # floats in a cache line, by as many rows; twice that on both sides where it fits
COLUMN_STRIP = 512  # columns reduced at a time: rows of 2 KB keep the prefetcher running
MOST_COLUMNS = 2048  # of which sums lie in the nearest caches
NUMBERS_STRIP = 64  # columns walked at a time whose numbers stay in the nearest cache
NEAR = 8 * 1024  # bytes of numbers that may be there beside the rows
LINES = 32  # elements that are whole cache lines in any type of two bytes or more
RANDOM_BLOCK = 64  # elements that share 16 Philox counters, all four words of each


def choose_schedule(kernel: Kernel, target: Target) -> Schedule:
    """A legal, good order for the loops of a kernel."""
    facts = _facts(kernel)
    if not kernel.axes:
        return Schedule((), 0, 1, 1)
    vector = max(facts.order, key=lambda a: (_vector_score(kernel, facts, a), -ord(a[-1])))
    rest = [a for a in facts.order if a != vector]
    outer = [a for a in rest if a not in facts.row]
    inner = [a for a in rest if a in facts.row]
    lanes, unroll = _vectors(kernel, facts, vector, target)
    across = _transposed(kernel, facts, vector, target)
    if across is not None:
        around = [Loop(a) for a in rest if a != across]
        least = min(hint(kernel.extent(a)) for a in (across, vector))
        side = TILE if least < 4 * TILE else 2 * TILE
        # along the axis that memory to turn is contiguous in: so it is read in long streams
        tiles = [Loop(vector, side), Loop(across, side), Loop(across), Loop(vector)]
        return Schedule((*around, *tiles), len(around) + 1, target.lanes, 1)
    if _walks_numbers(kernel, facts, vector):
        inside = max(1, min(2, len(rest) - 1))
        walked = *map(Loop, rest[:-inside]), Loop(vector, NUMBERS_STRIP), *map(Loop, rest[-inside:])
        loops = [*walked, Loop(vector)]
        return Schedule(tuple(loops), _band(kernel, facts, loops, target), lanes, unroll)
    strip = _strip(kernel, facts, vector, outer, inner, target)
    if strip and _in_whole_rows(kernel, facts, vector, strip, target):
        return Schedule((*map(Loop, rest), Loop(vector)), 1, lanes, unroll)
    if strip and (vector not in facts.row):
        loops = [Loop(vector, strip), *map(Loop, outer), *map(Loop, inner), Loop(vector)]
        if not facts.reduced & set(rest) and outer:
            loops = [*map(Loop, outer), *map(Loop, inner), Loop(vector, strip), Loop(vector)]
    else:
        tiles = [Loop(vector, strip)] if strip else []
        loops = [*map(Loop, outer), *map(Loop, inner), *tiles, Loop(vector)]
    return Schedule(tuple(loops), _band(kernel, facts, loops, target), lanes, unroll)


@dataclass(frozen=True)
class _Facts:
    """`row`: axes reduced and then walked again; `reduced`: all that are; `order`: by stride.

    An access counts its elements, a store's twice, and how often loops around it may repeat it.
    """

    runs: Mapping[Stmt, frozenset[str]]
    row: frozenset[str]
    reduced: frozenset[str]
    order: tuple[str, ...]
    accesses: tuple[tuple[Affine, int, int], ...] = field(default=())


def _facts(kernel: Kernel) -> _Facts:
    _, runs = iteration_axes(kernel)
    pending: dict[str, frozenset[str]] = {}  # axes already reduced in a value's history
    row: set[str] = set()
    reduced: set[str] = set()
    for s in kernel.body:
        history = frozenset().union(*(pending[u] for u in s.uses))
        row |= history & runs[s]
        if isinstance(s, Reduce):
            reduced |= set(s.over)
            history |= frozenset(s.over)
        if not isinstance(s, Store):
            pending[s.name] = history
    points = {s: math.prod(hint(kernel.extent(a)) for a in runs[s]) for s in kernel.body}
    most: dict[str, int] = {}  # points of a value's readers
    for reader, name in ((s, u) for s in kernel.body for u in s.uses):
        most[name] = max(most.get(name, 0), points[reader])
    accesses = tuple(
        (s.index, 2 * points[s], 2 * points[s])
        if isinstance(s, Store)
        else (s.index, points[s], max(points[s], most.get(s.name, 0)))
        for s in kernel.body
        if isinstance(s, (Load, Store, Take))
    )
    return _Facts(runs, frozenset(row), frozenset(reduced), _by_stride(kernel, accesses), accesses)


def _by_stride(kernel: Kernel, accesses: tuple[tuple[Affine, int, int], ...]) -> tuple[str, ...]:
    """Axes, the ones that step furthest in memory first."""

    def stride(axis: str) -> float:
        steps = [(abs(hint(i.coefficient(axis))), w) for i, w, _ in accesses]
        known = [(s, w) for s, w in steps if s]
        return sum(s * w for s, w in known) / max(1, sum(w for _, w in known))

    return tuple(sorted((a.name for a in kernel.axes), key=lambda a: (-stride(a), a)))


def _vector_score(kernel: Kernel, facts: _Facts, axis: str) -> float:
    """Contiguous accesses along the axis, less strided ones; long axes over short ones."""
    score = 0.0
    for index, weight, often in facts.accesses:
        step = index.coefficient(axis)
        if step == 1:
            score += weight
        elif is_spaced(step, TILE):
            score += weight / 2
        elif step != 0:
            score -= often
    most = max((w for _, w, _ in facts.accesses if w > 0), default=1) or 1
    extent = hint(kernel.extent(axis))
    return score / most * 4 + min(extent, 64) / 16 + facts.order.index(axis) / 64


def _vectors(kernel: Kernel, facts: _Facts, vector: str, target: Target) -> tuple[int, int]:
    """Lanes, and how many vectors are worked on at once."""
    wide = any(
        s.dtype in (DType.F64, DType.I64) and vector in facts.runs[s]
        for s in kernel.body
        if isinstance(s, (Load, Store, Compute))
    )
    narrow = any(
        s.dtype not in (DType.F64, DType.I64, DType.BOOL) and vector in facts.runs[s]
        for s in kernel.body
        if isinstance(s, (Load, Store))
    )
    lanes = max(1, target.lanes // 2) if wide and not narrow else target.lanes
    unroll = vectors_at_once(kernel, facts.runs, vector)
    if any(_whole_blocks(kernel, s, vector) for s in kernel.body if isinstance(s, Uniform)):
        unroll = max(1, RANDOM_BLOCK // lanes)
    extent = kernel.extent(vector)
    ends = [b for s in kernel.body if isinstance(s, Inside) for b in _ends(s, vector)]
    while unroll > 1 and any(b % (lanes * unroll) and not b % lanes for b in ends):
        unroll //= 2  # so that no group of vectors lies in two pieces of a cat
    if isinstance(extent, int):
        while unroll > 1 and extent <= lanes * (unroll // 2):
            unroll //= 2
    return lanes, unroll


def _ends(s: Inside, axis: str) -> list[int]:
    """Where along an axis a guard begins and ends to pass."""
    if s.index.coefficient(axis) != 1:
        return []
    places = [b + s.index.const * -1 for b in (s.lo, s.hi)]
    return [b for b in places if isinstance(b, int)]


def _whole_blocks(kernel: Kernel, u: Uniform, vector: str) -> bool:
    """Whether blocks of 64 along the vector axis are blocks of the generator."""
    others = [c for a, c in u.col.terms if a != vector] + [u.col.const]
    return u.col.coefficient(vector) == 1 and all(known_multiple(c, RANDOM_BLOCK) for c in others)


def _transposed(kernel: Kernel, facts: _Facts, vector: str, target: Target) -> str | None:
    """The axis along which some buffer is contiguous, where that is not the vector axis.

    Square tiles of the two then use each cache line whole while it is near.
    """
    if facts.reduced or target.lanes == 1:
        return None
    for index, *_ in facts.accesses:
        if index.coefficient(vector) in (0, 1):
            continue
        for axis in index.axes:
            long = hint(kernel.extent(axis)) >= TILE and hint(kernel.extent(vector)) >= TILE
            if axis != vector and index.coefficient(axis) == 1 and long:
                return axis
    return None


def _walks_numbers(kernel: Kernel, facts: _Facts, vector: str) -> bool:
    """Whether each row reads so many numbers of its columns, such as a window's weights of each
    channel, that the nearest cache does not hold them from row to row."""
    extent, rest = hint(kernel.extent(vector)), len(facts.order) > 1
    if facts.reduced or not rest or extent <= 2 * NUMBERS_STRIP:
        return False
    numbers = {s for s in kernel.body if isinstance(s, Load) and facts.runs[s] == {vector}}
    return len(numbers) > 2 and sum(s.dtype.itemsize for s in numbers) * extent > NEAR


def _strip(
    kernel: Kernel, facts: _Facts, vector: str, outer: list[str], inner: list[str], target: Target
) -> int:
    """The tile of the vector axis; 0 where it is run whole."""
    extent = hint(kernel.extent(vector), 1 << 20)
    if not outer and not inner:
        most = max(FEWEST, int(WORK_PER_THREAD / kernel_work(kernel)))
        return min(STRIP, 1 << (most.bit_length() - 1))
    if vector in facts.row:
        return 0
    others = [a for a in (*outer, *inner) if a in facts.reduced]
    if others and vector not in facts.reduced:
        if not _columns_alone(kernel, facts, vector):
            return 0
        shared = math.prod(hint(kernel.extent(a)) for a in outer if a not in facts.reduced)
        per_thread = -(-extent // max(1, target.threads // max(1, shared)))
        if per_thread < 64 and not inner:
            return 0
        drawn = any(isinstance(s, Uniform) for s in kernel.body)
        unit = RANDOM_BLOCK if per_thread >= RANDOM_BLOCK or drawn else LINES
        near = 8 * extent * math.prod(hint(kernel.extent(a)) for a in others) <= target.l2_bytes
        widest = MOST_COLUMNS if near else COLUMN_STRIP
        return min(widest, -(-per_thread // unit) * unit)
    if vector in facts.reduced and fixed(kernel.extent(vector), 1 << 20) > 2 * STRIP:
        return STRIP
    rows = 1
    for a in outer:
        rows *= hint(kernel.extent(a))
    return STRIP if rows < 4 * target.threads and extent > STRIP else 0


def _in_whole_rows(kernel: Kernel, facts: _Facts, vector: str, strip: int, target: Target) -> bool:
    """Whether columns that are reduced and walked again are, each time, by rows and not by strips.

    A strip that its caches do not hold comes from memory again in any case, in pieces of lines
    that the processor does not foresee.
    """
    rest = frozenset(facts.order) - {vector}
    if not rest or facts.reduced != rest or facts.row != rest:
        return False
    rows, columns = math.prod(hint(kernel.extent(a)) for a in rest), hint(kernel.extent(vector))
    if columns > MOST_COLUMNS or 8 * rows * min(strip, columns) <= target.l2_bytes:
        return False  # with as much that is written
    return target.threads > 1 or columns > strip


def _columns_alone(kernel: Kernel, facts: _Facts, vector: str) -> bool:
    """Whether everything that must run once runs along the vector axis."""
    return all(vector in facts.runs[s] for s in kernel.body if isinstance(s, (Store, Reduce)))


def _band(kernel: Kernel, facts: _Facts, loops: list[Loop], target: Target) -> int:
    """How many of the outermost loops are shared out among threads."""
    rows, band = 1, 0
    for k, loop in enumerate(loops):
        last = k == len(loops) - 1
        if last or (loop.axis in facts.row and band) or rows >= 4 * target.threads:
            break
        if band and loop.axis in facts.reduced:
            break
        extent = hint(kernel.extent(loop.axis))
        rows *= -(-extent // loop.strip) if loop.strip else extent
        band += 1
    return band
