"""Reductions in scratch arrays: those that keep axes of inner loops or span threads."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter
from tofuse.backends.cpu.llvm.ir_text import literal
from tofuse.backends.cpu.llvm.reduce import (
    Element,
    RegisterAccumulator,
    combine,
    current_element,
    horizontal_reduce,
    select_lanes,
)
from tofuse.cost.thresholds import STAGE_UNROLL
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import size_hint
from tofuse.ir.nest import Accumulator, Scratch
from tofuse.ir.types import DType
from tofuse.ops.table import NO_POSITION, reduction_identity

Arrays = tuple[Scratch, ...]  # of values; of argmax and argmin, also of positions


def reset_arrays(emitter: FunctionEmitter, a: Accumulator) -> None:
    """Set the arrays of a reduction to the identity."""
    start = reduction_identity(a.reduce.op, _dtype(a))
    for scratch in (*a.stages, *_result_arrays(a)):
        is_position = a.best is not None and scratch is a.array
        fill(emitter, scratch, NO_POSITION if is_position else start)


def _dtype(a: Accumulator) -> DType:
    """Return the dtype of the values."""
    return _result_arrays(a)[0].dtype


def _result_arrays(a: Accumulator) -> Arrays:
    assert a.array is not None
    return (a.array,) if a.best is None else (a.best, a.array)


def _updated_arrays(a: Accumulator) -> Arrays:
    """Return the arrays into which elements are combined: the first stage of a long sum."""
    return a.stages[:1] or _result_arrays(a)


def fill(emitter: FunctionEmitter, scratch: Scratch, start: float | int | bool) -> None:
    """Set all elements of a scratch array."""
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
    f, dtype, (source, target) = emitter.f, _dtype(a), (*a.stages, a.array)[stage : stage + 2]
    outer_terms = tuple((x, c) for x, c in source.index.terms if x in outer_axes)
    elements = min((c for _, c in outer_terms), key=size_hint, default=source.elements)
    first = emitter.affine(AffineExpr(outer_terms), source.tiled)
    count, lanes = emitter.size(elements), _padded_lanes(emitter, target)
    start = literal(reduction_identity(a.reduce.op, dtype), dtype, lanes)
    divides = count.isdigit() and int(count) % (STAGE_UNROLL * lanes) == 0
    unroll = STAGE_UNROLL if divides else 1
    with f.loop("0", count, str(unroll * lanes)) as k:
        for u in range(unroll):
            i = f.let(f"add i64 {first}, {f.let(f'add i64 {k}, {u * lanes}')}")
            workspace = emitter.thread_workspace
            slots = [_element_pointer(emitter, workspace, s, i) for s in (source, target)]
            new, old = (emitter.load(s, dtype, lanes, None) for s in slots)
            (total,) = combine(f, a.reduce, dtype, lanes, (old,), (new,))
            emitter.store(slots[1], dtype, total, lanes, None)
            emitter.store(slots[0], dtype, start, lanes, None)


def fold_stages(emitter: FunctionEmitter, a: Accumulator) -> None:
    """Add all stages to the final array, the smallest sums first."""
    assert a.array is not None
    lanes = _padded_lanes(emitter, a.array)
    with emitter.f.loop("0", emitter.size(a.array.elements), str(lanes)) as i:
        workspace = emitter.thread_workspace
        arrays = (*a.stages, a.array)
        slots = [(_element_pointer(emitter, workspace, s, i),) for s in arrays]
        _combine_slots(emitter, a, slots, slots[-1], lanes)


def combine_threads(emitter: FunctionEmitter, a: Accumulator, threads: str, stride: str) -> None:
    """Combine every thread's arrays into the first thread's, in thread order.

    Values go in whole vectors, for which arrays are padded.
    """
    assert a.array is not None
    f, lanes = emitter.f, _padded_lanes(emitter, a.array) if a.best is None else 1
    with f.loop("1", threads, "1") as t:
        shift = f.let(f"mul i64 {t}, {stride}")
        other = f.let(f"getelementptr i8, ptr {emitter.workspace}, i64 {shift}")
        with f.loop("0", emitter.size(a.array.elements), str(lanes)) as i:
            slots = [
                tuple(_element_pointer(emitter, w, x, i) for x in _result_arrays(a))
                for w in (emitter.workspace, other)
            ]
            _combine_slots(emitter, a, slots, slots[0], lanes)


def _combine_slots(
    emitter: FunctionEmitter, a: Accumulator, slots: Sequence[Element], target: Element, lanes: int
) -> None:
    """Store the combination of the elements at `slots` at `target`."""
    arrays = _result_arrays(a)
    total = _load(emitter, arrays, slots[0], lanes, None)
    for slot in slots[1:]:
        more = _load(emitter, arrays, slot, lanes, None)
        total = combine(emitter.f, a.reduce, _dtype(a), lanes, total, more)
    _store(emitter, arrays, target, total, lanes, None)


def update_array(emitter: FunctionEmitter, a: Accumulator, values: Sequence[str]) -> None:
    """Combine values into the array elements at the current indices.

    If the padding has room for a whole vector, masked lanes are stored unchanged instead of
    skipped: a load that follows a masked store stalls until the store has reached the cache.
    """
    f, r, arrays, lanes, dtype = emitter.f, a.reduce, _updated_arrays(a), emitter.lanes, _dtype(a)
    has_room = emitter.unroll == 1 and all(lanes <= _padded_lanes(emitter, x) for x in arrays)
    for u, x in enumerate(values):
        mask = emitter.mask(u)
        access_mask = None if has_room else mask
        slots = tuple(emitter.scratch_element_pointer(s, u) for s in arrays)
        old = _load(emitter, arrays, slots, lanes, access_mask)
        new = combine(f, r, dtype, lanes, old, current_element(emitter, r, x, u))
        if has_room and mask is not None:
            new = select_lanes(f, r, dtype, lanes, mask, new, old)
        _store(emitter, arrays, slots, new, lanes, access_mask)


def fold_into_array(emitter: FunctionEmitter, acc: RegisterAccumulator, a: Accumulator) -> None:
    """Fold all lanes of an inner loop's accumulator into the array element it belongs to."""
    result, arrays = horizontal_reduce(emitter, acc), _updated_arrays(a)
    slots = tuple(emitter.scratch_element_pointer(s, 0) for s in arrays)
    old = _load(emitter, arrays, slots, 1, None)
    total = combine(emitter.f, a.reduce, acc.dtype, 1, old, result)
    _store(emitter, arrays, slots, total, 1, None)


def store_partial(emitter: FunctionEmitter, a: Accumulator, acc: RegisterAccumulator) -> None:
    """Store a thread's scalar result in its workspace for `combine_threads`."""
    result, arrays = horizontal_reduce(emitter, acc), _result_arrays(a)
    _store(emitter, arrays, tuple(map(emitter.scratch_pointer, arrays)), result, 1, None)


def _load(
    emitter: FunctionEmitter, arrays: Arrays, slots: Element, lanes: int, mask: str | None
) -> Element:
    pairs = zip(arrays, slots, strict=True)
    return tuple(emitter.load(slot, a.dtype, lanes, mask) for a, slot in pairs)


def _store(
    emitter: FunctionEmitter,
    arrays: Arrays,
    slots: Element,
    element: Element,
    lanes: int,
    mask: str | None,
) -> None:
    for a, slot, x in zip(arrays, slots, element, strict=True):
        emitter.store(slot, a.dtype, x, lanes, mask)


def _padded_lanes(emitter: FunctionEmitter, scratch: Scratch) -> int:
    """Return the number of lanes for which an array is padded, up to 64 bytes."""
    return max(1, min(emitter.nest.schedule.vector, 64 // scratch.dtype.itemsize))


def _element_pointer(emitter: FunctionEmitter, workspace: str, scratch: Scratch, i: str) -> str:
    """Return the address of element `i` of an array in a thread's workspace."""
    at = emitter.f.let(f"getelementptr i8, ptr {workspace}, i64 {emitter.size(scratch.offset)}")
    return emitter.element_pointer(at, scratch.dtype, i)
