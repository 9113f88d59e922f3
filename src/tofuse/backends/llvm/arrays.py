"""Accumulators in scratch: reductions that keep axes of inner loops, or span threads."""

from __future__ import annotations

from tofuse.backends.llvm.reduce import Cell, better_of, combine, finish, identity
from tofuse.backends.llvm.registers import Frame
from tofuse.backends.llvm.text import REGISTER, literal, vector
from tofuse.ir.loops import Accumulate, Scratch
from tofuse.ir.types import DType

FOLD_EVERY = 64  # steps an inner array gathers before it is added to the whole: keeps errors small


def clear_array(frame: Frame, a: Accumulate) -> None:
    """Set the arrays of a reduction to the identity."""
    assert a.array is not None
    op = a.reduce.op
    if a.best is not None:
        _fill(frame, a.array, 2**62)
        _fill(frame, a.best, identity(op, a.best.dtype))
        return
    for scratch in (a.array, *([a.inner] if a.inner else [])):
        _fill(frame, scratch, identity(op, scratch.dtype))


def _fill(frame: Frame, scratch: Scratch, start: float | int | bool) -> None:
    pointer, lanes = frame.scratch_pointer(scratch), _lanes(frame, scratch)
    with frame.f.loop("0", frame.size(scratch.elements), str(lanes)) as i:
        slot = frame.element(pointer, scratch.dtype, i)
        frame.store(slot, scratch.dtype, literal(start, scratch.dtype, lanes), lanes, None)


def fold_inner(frame: Frame, a: Accumulate) -> None:
    """Add what the inner array gathered to the whole, and start it again."""
    assert a.array is not None and a.inner is not None
    _add(frame, a.reduce.op, a.array, frame.block, (a.inner, frame.block))
    _fill(frame, a.inner, identity(a.reduce.op, a.inner.dtype))


def update_array(frame: Frame, a: Accumulate) -> None:
    """Take the current values into the array elements of their kept axes."""
    assert a.array is not None
    r, lanes, dtype = a.reduce, frame.lanes, (a.best or a.array).dtype
    for u, x in enumerate(frame.get(r.arg, dtype)):
        mask = frame.mask(u)
        slot = frame.scratch_element(a.inner or a.array, u)
        if a.best is None:
            old = frame.load(slot, dtype, lanes, mask)
            new = combine(frame, r.op, old, x, dtype, lanes)
            frame.store(slot, dtype, new, lanes, mask)
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


def fold_into_array(frame: Frame, cell: Cell, a: Accumulate) -> None:
    """Fold all lanes of an inner loop's accumulator into the array element it belongs to."""
    assert a.array is not None
    f, dtype = frame.f, cell.dtype
    result, best = finish(frame, cell)
    slot = frame.scratch_element(a.inner or a.array, 0)
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
