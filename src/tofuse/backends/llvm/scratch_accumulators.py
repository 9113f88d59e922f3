"""Accumulators in scratch: reductions that keep axes of inner loops, or span threads."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.llvm.ir_text import REGISTER, literal, vector
from tofuse.backends.llvm.reduce import Cell, better_of, combine, finish, identity
from tofuse.backends.llvm.registers import Frame
from tofuse.ir.dims import hint
from tofuse.ir.kernel import Affine, Reduce
from tofuse.ir.nest import Accumulate, Scratch
from tofuse.ir.types import DType

AT_ONCE = 4  # vectors moved at a time: stages are moved while the next rows are on their way


def clear_array(frame: Frame, a: Accumulate) -> None:
    """Set the arrays of a reduction to the identity."""
    assert a.array is not None
    op = a.reduce.op
    if a.best is not None:
        _fill(frame, a.array, 2**62)
        _fill(frame, a.best, identity(op, a.best.dtype))
        return
    for scratch in (*a.stages, a.array):
        _fill(frame, scratch, identity(op, scratch.dtype))


def _fill(frame: Frame, scratch: Scratch, start: float | int | bool) -> None:
    pointer, lanes = frame.scratch_pointer(scratch), _lanes(frame, scratch)
    with frame.f.loop("0", frame.size(scratch.elements), str(lanes)) as i:
        slot = frame.element(pointer, scratch.dtype, i)
        frame.store(slot, scratch.dtype, literal(start, scratch.dtype, lanes), lanes, None)


def fold_array(frame: Frame, a: Accumulate, outside: Sequence[str], stage: int) -> None:
    """Add what a stage gathered to the next one, and start it again.

    Only the elements of the current point of the axes `outside`, which are the array's first.
    """
    assert a.array is not None
    rows = (*a.stages, a.array)
    fixed = tuple((x, c) for x, c in rows[stage].index.terms if x in outside)
    least = min((c for _, c in fixed), key=hint, default=rows[stage].elements)
    first = frame.affine(Affine(fixed), rows[stage].tiled)
    start = identity(a.reduce.op, a.array.dtype)
    _move(frame, a.reduce.op, rows[stage : stage + 2], (first, frame.size(least)), start)


def fold_stages(frame: Frame, a: Accumulate) -> None:
    """Add what all stages gathered to the whole, the smallest sums first."""
    assert a.array is not None
    f, dtype, lanes = frame.f, a.array.dtype, _lanes(frame, a.array)
    with f.loop("0", frame.size(a.array.elements), str(lanes)) as i:
        slots = [_slot(frame, frame.block, s, i) for s in (*a.stages, a.array)]
        total = frame.load(slots[0], dtype, lanes, None)
        for slot in slots[1:]:
            more = frame.load(slot, dtype, lanes, None)
            total = combine(frame, a.reduce.op, total, more, dtype, lanes)
        frame.store(slots[-1], dtype, total, lanes, None)


def _move(
    frame: Frame,
    op: str,
    rows: tuple[Scratch, ...],
    part: tuple[str, str],
    start: float | int | bool,
) -> None:
    """Add elements of one array to another's and set them to `start`; `part` is first and count."""
    f, (source, into), (first, count) = frame.f, rows, part
    lanes, dtype = _lanes(frame, into), into.dtype
    whole = count.isdigit() and int(count) % (AT_ONCE * lanes) == 0
    step = AT_ONCE if whole else 1
    with f.loop("0", count, str(step * lanes)) as k:
        for u in range(step):
            i = f.let(f"add i64 {first}, {f.let(f'add i64 {k}, {u * lanes}')}")
            slots = [_slot(frame, frame.block, s, i) for s in (source, into)]
            new, old = (frame.load(s, dtype, lanes, None) for s in slots)
            total = combine(frame, op, old, new, dtype, lanes)
            frame.store(slots[1], dtype, total, lanes, None)
            frame.store(slots[0], dtype, literal(start, dtype, lanes), lanes, None)


def added_up(frame: Frame, r: Reduce, rows: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Vectors of several rows combined, in pairs."""
    while len(rows) > 1:
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [
            tuple(
                combine(frame, r.op, a, b, r.dtype, frame.lanes) for a, b in zip(*both, strict=True)
            )
            for both in pairs
        ]
    return rows[0]


def update_array(frame: Frame, a: Accumulate, values: Sequence[str]) -> None:
    """Take values into the array elements of their kept axes."""
    assert a.array is not None
    r, lanes, dtype = a.reduce, frame.lanes, (a.best or a.array).dtype
    for u, x in enumerate(values):
        mask = frame.mask(u)
        slot = frame.scratch_element((*a.stages, a.array)[0], u)
        if a.best is None:
            _update(frame, a, slot, x, mask)
            continue
        assert r.position is not None
        f, ints, kind = frame.f, vector("i64", lanes), vector(REGISTER[dtype], lanes)
        best_slot = frame.scratch_element(a.best, u)
        old, where = (
            frame.load(best_slot, dtype, lanes, mask),
            frame.load(slot, DType.I64, lanes, mask),
        )
        at = frame.lane_index(r.position, u)
        better = better_of(frame, Cell(r, dtype, lanes, ()), x, at, old, where, lanes)
        bits = vector("i1", lanes)
        best = f.let(f"select {bits} {better}, {kind} {x}, {kind} {old}")
        place = f.let(f"select {bits} {better}, {ints} {at}, {ints} {where}")
        frame.store(best_slot, dtype, best, lanes, mask)
        frame.store(slot, DType.I64, place, lanes, mask)


def _update(frame: Frame, a: Accumulate, slot: str, x: str, mask: str | None) -> None:
    """Take a vector into the elements at `slot`.

    Where the padding has room for a whole vector, lanes that are masked keep what lies there: a
    load that follows a masked store waits until it has reached the cache.
    """
    assert a.array is not None
    dtype, lanes, op = a.array.dtype, frame.lanes, a.reduce.op
    whole = mask is None or (frame.unroll == 1 and lanes <= _lanes(frame, a.array))
    old = frame.load(slot, dtype, lanes, None if whole else mask)
    new = combine(frame, op, old, x, dtype, lanes)
    if whole and mask is not None:
        kind = vector(REGISTER[dtype], lanes)
        new = frame.f.let(f"select {vector('i1', lanes)} {mask}, {kind} {new}, {kind} {old}")
    frame.store(slot, dtype, new, lanes, None if whole else mask)


def fold_into_array(frame: Frame, cell: Cell, a: Accumulate) -> None:
    """Fold all lanes of an inner loop's accumulator into the array element it belongs to."""
    assert a.array is not None
    f, dtype = frame.f, cell.dtype
    result, best = finish(frame, cell)
    slot = frame.scratch_element((*a.stages, a.array)[0], 0)
    if a.best is None:
        old = frame.load(slot, dtype, 1, None)
        total = combine(frame, a.reduce.op, old, result, dtype, 1)
        frame.store(slot, dtype, total, 1, None)
        return
    best_slot = frame.scratch_element(a.best, 0)
    old, where = frame.load(best_slot, dtype, 1, None), frame.load(slot, DType.I64, 1, None)
    better = better_of(frame, cell, best, result, old, where, 1)
    kind = REGISTER[dtype]
    value = f.let(f"select i1 {better}, {kind} {best}, {kind} {old}")
    frame.store(best_slot, dtype, value, 1, None)
    frame.store(slot, DType.I64, f.let(f"select i1 {better}, i64 {result}, i64 {where}"), 1, None)


def store_partial(frame: Frame, a: Accumulate, cell: Cell) -> None:
    """Put a thread's scalar where the combination will look for it."""
    assert a.array is not None
    result, best = finish(frame, cell)
    frame.store(frame.scratch_pointer(a.array), a.array.dtype, result, 1, None)
    if a.best is not None:
        frame.store(frame.scratch_pointer(a.best), a.best.dtype, best, 1, None)


def combine_threads(frame: Frame, a: Accumulate, threads: str, stride: str) -> None:
    """Fold every thread's array into the first thread's, in thread order."""
    assert a.array is not None
    f, array = frame.f, a.array
    with f.loop("1", threads, "1") as t:
        shift = f.let(f"mul i64 {t}, {stride}")
        other = f.let(f"getelementptr i8, ptr {frame.base}, i64 {shift}")
        if a.best is None:
            _add(frame, a.reduce.op, array, frame.base, (array, other))
            return
        with f.loop("0", frame.size(array.elements), "1") as i:
            slots = [_slot(frame, b, array, i) for b in (frame.base, other)]
            old, new = (frame.load(s, array.dtype, 1, None) for s in slots)
            _combine_best(frame, a, slots[0], (old, new), other, i)


def _add(frame: Frame, op: str, into: Scratch, block: str, source: tuple[Scratch, str]) -> None:
    """Combine one array into another, in whole vectors: arrays are padded to that."""
    f, lanes = frame.f, _lanes(frame, into)
    with f.loop("0", frame.size(into.elements), str(lanes)) as i:
        slots = [_slot(frame, b, x, i) for x, b in ((into, block), source)]
        old, new = (frame.load(s, into.dtype, lanes, None) for s in slots)
        total = combine(frame, op, old, new, into.dtype, lanes)
        frame.store(slots[0], into.dtype, total, lanes, None)


def _lanes(frame: Frame, scratch: Scratch) -> int:
    """As many lanes as the padding behind an array allows: 64 bytes."""
    return max(1, min(frame.nest.schedule.vector, 64 // scratch.dtype.itemsize))


def _combine_best(
    frame: Frame, a: Accumulate, slot: str, places: tuple[str, str], other: str, i: str
) -> None:
    assert a.best is not None
    f, (old, new) = frame.f, places
    tops = [_slot(frame, b, a.best, i) for b in (frame.base, other)]
    best, x = (frame.load(s, a.best.dtype, 1, None) for s in tops)
    better = better_of(frame, Cell(a.reduce, a.best.dtype, 1, ()), x, new, best, old, 1)
    kind = REGISTER[a.best.dtype]
    best = f.let(f"select i1 {better}, {kind} {x}, {kind} {best}")
    place = f.let(f"select i1 {better}, i64 {new}, i64 {old}")
    frame.store(tops[0], a.best.dtype, best, 1, None)
    frame.store(slot, DType.I64, place, 1, None)


def _slot(frame: Frame, block: str, scratch: Scratch, i: str) -> str:
    at = frame.f.let(f"getelementptr i8, ptr {block}, i64 {frame.size(scratch.offset)}")
    return frame.element(at, scratch.dtype, i)
