"""Strided and interleaved accesses: whole vectors, with their elements selected by shuffles."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter
from tofuse.backends.cpu.llvm.ir_text import MEMORY_TYPES, literal, vector_type
from tofuse.backends.cpu.llvm.memory_types import to_memory_type, to_register_type
from tofuse.backends.cpu.llvm.peel import is_nontemporal
from tofuse.backends.cpu.llvm.shuffles import deinterleave, interleave, select_elements
from tofuse.ir.interleave import Access
from tofuse.ir.kernel import Load, Store
from tofuse.ir.types import DType


def load_strided(
    emitter: FunctionEmitter,
    pointer: str,
    dtype: DType,
    start_index: str,
    step: int,
    mask: str | None,
) -> str:
    """Load `lanes` elements that are `step` apart, the first at `start_index`.

    Nothing after the last element is read.
    """
    f, lanes, stride = emitter.f, emitter.lanes, abs(step)
    last = stride * (lanes - 1)
    if step < 0:
        start_index = f.let(f"sub i64 {start_index}, {last}")
    starts = [min(lanes * k, last + 1 - lanes) for k in range(stride)]
    offsets = range(0, last + 1, stride) if step > 0 else range(last, -1, -stride)
    positions = [_position(starts, offset, lanes) for offset in offsets]
    vectors = []
    for k, start in enumerate(starts):
        slot = emitter.element_pointer(pointer, dtype, f.let(f"add i64 {start_index}, {start}"))
        vector_mask = None
        if mask is not None:
            lane_of = {p - k * lanes: lane for lane, p in enumerate(positions)}
            vector_mask = _permute_mask(emitter, mask, [lane_of.get(n) for n in range(lanes)])
        vectors.append(emitter.load_raw(slot, dtype, lanes, vector_mask))
    ty = vector_type(MEMORY_TYPES[dtype], lanes)
    (raw,) = select_elements(f, vectors, positions, ty, lanes)
    return to_register_type(f, raw, dtype, lanes)


def load_interleaved(emitter: FunctionEmitter, members: Sequence[Access], dtype: DType) -> None:
    """Load an interleave group as contiguous vectors and deinterleave them into its members."""
    f, lanes, step = emitter.f, emitter.lanes, len(members)
    first, start = members[0], emitter.affine(members[0].index)
    assert isinstance(first, Load)
    ty = vector_type(MEMORY_TYPES[dtype], lanes)
    member_operands: list[list[str]] = [[] for _ in members]
    for u in range(emitter.unroll):
        mask, vectors = emitter.mask(u, first.guard), []
        mapped = emitter.mapped_index(start, first.guard, mask)
        for k in range(step):
            slot = _vector_pointer(emitter, first, dtype, mapped, u, k, step)
            vector_mask = _vector_mask(emitter, mask, k, step)
            vectors.append(emitter.load_raw(slot, dtype, lanes, vector_mask))
        columns = deinterleave(f, vectors, ty, lanes)
        for operands, raw in zip(member_operands, columns, strict=True):
            operands.append(to_register_type(f, raw, dtype, lanes))
    for s, operands in zip(members, member_operands, strict=True):
        assert isinstance(s, Load)
        emitter.define(s.name, operands, s.dtype)


def store_interleaved(emitter: FunctionEmitter, members: Sequence[Access], dtype: DType) -> None:
    """Interleave the members of a group and store them as contiguous vectors."""
    f, lanes, step = emitter.f, emitter.lanes, len(members)
    first, start = members[0], emitter.affine(members[0].index)
    ty, register = vector_type(MEMORY_TYPES[dtype], lanes), dtype.opmath
    values = [emitter.operands(s.value, register) for s in members if isinstance(s, Store)]
    assert isinstance(first, Store)
    nontemporal = is_nontemporal(emitter, first)
    for u in range(emitter.unroll):
        mask = emitter.mask(u)
        vectors = [to_memory_type(f, v[u], dtype, lanes) for v in values]
        for k, raw in enumerate(interleave(f, vectors, ty, lanes)):
            slot = _vector_pointer(emitter, first, dtype, start, u, k, step)
            vector_mask = _vector_mask(emitter, mask, k, step)
            emitter.store_raw(slot, dtype, raw, lanes, vector_mask, nontemporal=nontemporal)


def _vector_pointer(
    emitter: FunctionEmitter, s: Access, dtype: DType, start: str, u: int, k: int, step: int
) -> str:
    """Return the address of vector `k` of a group, for vectors `u` of its members."""
    index = emitter.f.let(f"add i64 {start}, {(u * step + k) * emitter.lanes}")
    return emitter.element_pointer(emitter.pointers[s.buffer], dtype, index)


def _vector_mask(emitter: FunctionEmitter, mask: str | None, k: int, step: int) -> str | None:
    """Return the mask of vector `k` of a group; a lane of `mask` covers one element per member."""
    if mask is None:
        return None
    lanes = emitter.lanes
    return _permute_mask(emitter, mask, [(k * lanes + n) // step for n in range(lanes)])


def _position(starts: list[int], offset: int, lanes: int) -> int:
    """Return the position of an element, counted over all loaded vectors."""
    vector = next(k for k, s in enumerate(starts) if s <= offset < s + lanes)
    return vector * lanes + offset - starts[vector]


def _permute_mask(emitter: FunctionEmitter, mask: str, source_lanes: Sequence[int | None]) -> str:
    """Return a mask whose lanes are those of `mask` at `source_lanes`, off for None."""
    lanes, off = emitter.lanes, literal(False, DType.BOOL, emitter.lanes)
    order = [lanes if lane is None else lane for lane in source_lanes]
    return emitter.f.shuffle(vector_type("i1", lanes), mask, off, order)
