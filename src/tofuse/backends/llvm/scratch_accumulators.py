"""Reductions in scratch arrays: those that keep axes of inner loops or span threads."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.llvm.function_emitter import FunctionEmitter
from tofuse.backends.llvm.ir_text import REGISTER_TYPES, literal, vector_type
from tofuse.backends.llvm.reduce import (
    RegisterAccumulator,
    combine,
    horizontal_reduce,
    identity,
    select_better,
)
from tofuse.cost.thresholds import STAGE_UNROLL
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import AffineExpr, Reduce
from tofuse.ir.nest import Accumulator, Scratch
from tofuse.ir.types import DType


def reset_arrays(emitter: FunctionEmitter, a: Accumulator) -> None:
    """Set the arrays of a reduction to the identity."""
    assert a.array is not None
    op = a.reduce.op
    if a.best is not None:
        _fill(emitter, a.array, 2**62)
        _fill(emitter, a.best, identity(op, a.best.dtype))
        return
    for scratch in (*a.stages, a.array):
        _fill(emitter, scratch, identity(op, scratch.dtype))


def _fill(emitter: FunctionEmitter, scratch: Scratch, start: float | int | bool) -> None:
    pointer, lanes = emitter.scratch_pointer(scratch), _padded_lanes(emitter, scratch)
    with emitter.f.loop("0", emitter.size(scratch.elements), str(lanes)) as i:
        slot = emitter.element_pointer(pointer, scratch.dtype, i)
        emitter.store(slot, scratch.dtype, literal(start, scratch.dtype, lanes), lanes, None)


def fold_array_stage(
    emitter: FunctionEmitter, a: Accumulator, outer_axes: Sequence[str], stage: int
) -> None:
    """Add a stage to the next one and reset it.

    Only the elements at the current point of `outer_axes` are touched; these axes come first in
    the array.
    """
    assert a.array is not None
    arrays = (*a.stages, a.array)
    outer_terms = tuple((x, c) for x, c in arrays[stage].index.terms if x in outer_axes)
    count = min((c for _, c in outer_terms), key=size_hint, default=arrays[stage].elements)
    first = emitter.affine(AffineExpr(outer_terms), arrays[stage].tiled)
    start = identity(a.reduce.op, a.array.dtype)
    pair, part = arrays[stage : stage + 2], (first, emitter.size(count))
    _add_and_reset(emitter, a.reduce.op, pair, part, start)


def fold_stages(emitter: FunctionEmitter, a: Accumulator) -> None:
    """Add all stages to the final array, the smallest sums first."""
    assert a.array is not None
    f, dtype, lanes = emitter.f, a.array.dtype, _padded_lanes(emitter, a.array)
    with f.loop("0", emitter.size(a.array.elements), str(lanes)) as i:
        workspace = emitter.thread_workspace
        slots = [_element_pointer(emitter, workspace, s, i) for s in (*a.stages, a.array)]
        total = emitter.load(slots[0], dtype, lanes, None)
        for slot in slots[1:]:
            more = emitter.load(slot, dtype, lanes, None)
            total = combine(emitter, a.reduce.op, total, more, dtype, lanes)
        emitter.store(slots[-1], dtype, total, lanes, None)


def _add_and_reset(
    emitter: FunctionEmitter,
    op: str,
    arrays: tuple[Scratch, ...],
    part: tuple[str, str],
    start: float | int | bool,
) -> None:
    """Add elements of one array to another and set them to `start`; `part` is (first, count)."""
    f, (source, target), (first, count) = emitter.f, arrays, part
    lanes, dtype = _padded_lanes(emitter, target), target.dtype
    divides = count.isdigit() and int(count) % (STAGE_UNROLL * lanes) == 0
    unroll = STAGE_UNROLL if divides else 1
    with f.loop("0", count, str(unroll * lanes)) as k:
        for u in range(unroll):
            i = f.let(f"add i64 {first}, {f.let(f'add i64 {k}, {u * lanes}')}")
            workspace = emitter.thread_workspace
            slots = [_element_pointer(emitter, workspace, s, i) for s in (source, target)]
            new, old = (emitter.load(s, dtype, lanes, None) for s in slots)
            total = combine(emitter, op, old, new, dtype, lanes)
            emitter.store(slots[1], dtype, total, lanes, None)
            emitter.store(slots[0], dtype, literal(start, dtype, lanes), lanes, None)


def combine_rows(
    emitter: FunctionEmitter, r: Reduce, rows: list[tuple[str, ...]]
) -> tuple[str, ...]:
    """Combine the vectors of several rows pairwise."""
    while len(rows) > 1:
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [
            tuple(
                combine(emitter, r.op, a, b, r.dtype, emitter.lanes)
                for a, b in zip(*both, strict=True)
            )
            for both in pairs
        ]
    return rows[0]


def update_array(emitter: FunctionEmitter, a: Accumulator, values: Sequence[str]) -> None:
    """Combine values into the array elements at the current indices."""
    assert a.array is not None
    for u, x in enumerate(values):
        mask = emitter.mask(u)
        slot = emitter.scratch_element_pointer((*a.stages, a.array)[0], u)
        if a.best is None:
            _update(emitter, a, slot, x, mask)
        else:
            _update_position(emitter, a, u, slot, x, mask)


def _update_position(
    emitter: FunctionEmitter, a: Accumulator, u: int, slot: str, x: str, mask: str | None
) -> None:
    """Combine a vector and its positions into the elements at `slot` and in `best`."""
    assert a.best is not None
    assert a.reduce.position is not None
    dtype = a.best.dtype
    acc = RegisterAccumulator(a.reduce, dtype, emitter.lanes, ())
    best_slot = emitter.scratch_element_pointer(a.best, u)
    old = emitter.load(best_slot, dtype, acc.lanes, mask)
    where = emitter.load(slot, DType.I64, acc.lanes, mask)
    at = emitter.lane_indices(a.reduce.position, u)
    best, position = select_better(emitter, acc, (old, where), (x, at), acc.lanes)
    emitter.store(best_slot, dtype, best, acc.lanes, mask)
    emitter.store(slot, DType.I64, position, acc.lanes, mask)


def _update(emitter: FunctionEmitter, a: Accumulator, slot: str, x: str, mask: str | None) -> None:
    """Combine a vector into the elements at `slot`.

    If the padding has room for a whole vector, masked lanes are stored unchanged instead of
    skipped: a load that follows a masked store stalls until the store has reached the cache.
    """
    assert a.array is not None
    dtype, lanes, op = a.array.dtype, emitter.lanes, a.reduce.op
    has_room = emitter.unroll == 1 and lanes <= _padded_lanes(emitter, a.array)
    access_mask = None if has_room else mask
    old = emitter.load(slot, dtype, lanes, access_mask)
    new = combine(emitter, op, old, x, dtype, lanes)
    if has_room and mask is not None:
        ty = vector_type(REGISTER_TYPES[dtype], lanes)
        new = emitter.f.let(f"select {vector_type('i1', lanes)} {mask}, {ty} {new}, {ty} {old}")
    emitter.store(slot, dtype, new, lanes, access_mask)


def fold_into_array(emitter: FunctionEmitter, acc: RegisterAccumulator, a: Accumulator) -> None:
    """Fold all lanes of an inner loop's accumulator into the array element it belongs to."""
    assert a.array is not None
    dtype = acc.dtype
    result, best = horizontal_reduce(emitter, acc)
    slot = emitter.scratch_element_pointer((*a.stages, a.array)[0], 0)
    if a.best is None:
        old = emitter.load(slot, dtype, 1, None)
        total = combine(emitter, a.reduce.op, old, result, dtype, 1)
        emitter.store(slot, dtype, total, 1, None)
        return
    best_slot = emitter.scratch_element_pointer(a.best, 0)
    old, where = emitter.load(best_slot, dtype, 1, None), emitter.load(slot, DType.I64, 1, None)
    value, position = select_better(emitter, acc, (old, where), (best, result), 1)
    emitter.store(best_slot, dtype, value, 1, None)
    emitter.store(slot, DType.I64, position, 1, None)


def store_partial(emitter: FunctionEmitter, a: Accumulator, acc: RegisterAccumulator) -> None:
    """Store a thread's scalar result in its workspace for `combine_threads`."""
    assert a.array is not None
    result, best = horizontal_reduce(emitter, acc)
    emitter.store(emitter.scratch_pointer(a.array), a.array.dtype, result, 1, None)
    if a.best is not None:
        emitter.store(emitter.scratch_pointer(a.best), a.best.dtype, best, 1, None)


def combine_threads(emitter: FunctionEmitter, a: Accumulator, threads: str, stride: str) -> None:
    """Combine every thread's array into the first thread's, in thread order."""
    assert a.array is not None
    f, array = emitter.f, a.array
    with f.loop("1", threads, "1") as t:
        shift = f.let(f"mul i64 {t}, {stride}")
        other = f.let(f"getelementptr i8, ptr {emitter.workspace}, i64 {shift}")
        if a.best is None:
            _combine_arrays(emitter, a.reduce.op, array, emitter.workspace, (array, other))
            return
        with f.loop("0", emitter.size(array.elements), "1") as i:
            workspaces = (emitter.workspace, other)
            slots = [_element_pointer(emitter, w, array, i) for w in workspaces]
            old, new = (emitter.load(s, array.dtype, 1, None) for s in slots)
            _combine_positions(emitter, a, slots[0], (old, new), other, i)


def _combine_arrays(
    emitter: FunctionEmitter, op: str, target: Scratch, workspace: str, source: tuple[Scratch, str]
) -> None:
    """Combine one array into another in whole vectors; arrays are padded for that."""
    f, lanes = emitter.f, _padded_lanes(emitter, target)
    with f.loop("0", emitter.size(target.elements), str(lanes)) as i:
        slots = [_element_pointer(emitter, w, x, i) for x, w in ((target, workspace), source)]
        old, new = (emitter.load(s, target.dtype, lanes, None) for s in slots)
        total = combine(emitter, op, old, new, target.dtype, lanes)
        emitter.store(slots[0], target.dtype, total, lanes, None)


def _padded_lanes(emitter: FunctionEmitter, scratch: Scratch) -> int:
    """Return the number of lanes for which an array is padded, up to 64 bytes."""
    return max(1, min(emitter.nest.schedule.vector, 64 // scratch.dtype.itemsize))


def _combine_positions(
    emitter: FunctionEmitter,
    a: Accumulator,
    slot: str,
    positions: tuple[str, str],
    other_workspace: str,
    i: str,
) -> None:
    """Combine element `i` of another thread's argmax or argmin; `positions` are (old, new)."""
    assert a.best is not None
    old, new = positions
    workspaces = (emitter.workspace, other_workspace)
    best_slots = [_element_pointer(emitter, w, a.best, i) for w in workspaces]
    best, x = (emitter.load(s, a.best.dtype, 1, None) for s in best_slots)
    acc = RegisterAccumulator(a.reduce, a.best.dtype, 1, ())
    best, position = select_better(emitter, acc, (best, old), (x, new), 1)
    emitter.store(best_slots[0], a.best.dtype, best, 1, None)
    emitter.store(slot, DType.I64, position, 1, None)


def _element_pointer(emitter: FunctionEmitter, workspace: str, scratch: Scratch, i: str) -> str:
    """Return the address of element `i` of an array in a thread's workspace."""
    at = emitter.f.let(f"getelementptr i8, ptr {workspace}, i64 {emitter.size(scratch.offset)}")
    return emitter.element_pointer(at, scratch.dtype, i)
