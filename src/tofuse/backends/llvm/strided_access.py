"""Accesses with gaps: whole vectors, and what is wanted picked from them or put together."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.llvm.ir_text import MEMORY, literal, vector
from tofuse.backends.llvm.registers import Frame, register
from tofuse.backends.llvm.shuffles import join, part, pick
from tofuse.ir.dims import known_multiple
from tofuse.ir.interleave import Access
from tofuse.ir.kernel import Affine, Load, Store
from tofuse.ir.types import DType


def load_spaced(
    frame: Frame, pointer: str, dtype: DType, at: str, step: int, mask: str | None
) -> str:
    """`lanes` elements, `step` apart, from index `at` on; nothing is read past the last."""
    f, lanes, apart = frame.f, frame.lanes, abs(step)
    last = apart * (lanes - 1)
    if step < 0:
        at = f.let(f"sub i64 {at}, {last}")
    starts = [min(lanes * k, last + 1 - lanes) for k in range(apart)]
    wanted = range(0, last + 1, apart) if step > 0 else range(last, -1, -apart)
    places = [_place(starts, w, lanes) for w in wanted]
    parts = []
    for k, start in enumerate(starts):
        slot = frame.element(pointer, dtype, f.let(f"add i64 {at}, {start}"))
        takers = {p - k * lanes: lane for lane, p in enumerate(places)}
        own = None if mask is None else _spread(frame, mask, [takers.get(n) for n in range(lanes)])
        parts.append(frame.raw(slot, dtype, lanes, own))
    (raw,) = pick(f, parts, places, vector(MEMORY[dtype], lanes), lanes)
    return frame.widen(raw, dtype, lanes)


def load_group(frame: Frame, members: Sequence[Access], dtype: DType) -> None:
    """Every element between neighbours: vectors as they lie, parted into one for each place."""
    f, lanes, step = frame.f, frame.lanes, len(members)
    first, at = members[0], frame.affine(members[0].index)
    assert isinstance(first, Load)
    kind = vector(MEMORY[dtype], lanes)
    parted: list[list[str]] = [[] for _ in members]
    for u in range(frame.unroll):
        mask, parts = frame.mask(u, first.guard), []
        for k in range(step):
            slot = _part(frame, first, dtype, at, u, k, step)
            parts.append(frame.raw(slot, dtype, lanes, _own(frame, mask, k, step)))
        for names, raw in zip(parted, part(f, parts, kind, lanes), strict=True):
            names.append(frame.widen(raw, dtype, lanes))
    for s, names in zip(members, parted, strict=True):
        assert isinstance(s, Load)
        frame.put(s.name, names, s.dtype)


def store_group(frame: Frame, members: Sequence[Access], dtype: DType) -> None:
    """Every element between neighbours, from a vector for each place."""
    f, lanes, step = frame.f, frame.lanes, len(members)
    first, at, kind = members[0], frame.affine(members[0].index), vector(MEMORY[dtype], lanes)
    values = [frame.get(s.value, register(dtype)) for s in members if isinstance(s, Store)]
    streamed = first.buffer in frame.streams and _is_aligned(frame, first.index)
    for u in range(frame.unroll):
        mask = frame.mask(u)
        parts = [frame.narrow(v[u], dtype, lanes) for v in values]
        for k, raw in enumerate(join(f, parts, kind, lanes)):
            slot = _part(frame, first, dtype, at, u, k, step)
            if mask is None and streamed:
                frame.put_stream(slot, dtype, raw, lanes)
            else:
                frame.put_raw(slot, dtype, raw, lanes, _own(frame, mask, k, step))


def _part(frame: Frame, s: Access, dtype: DType, at: str, u: int, k: int, step: int) -> str:
    """Where a group's vector lies, of those that one vector of each place makes."""
    more = frame.f.let(f"add i64 {at}, {(u * step + k) * frame.lanes}")
    return frame.element(frame.pointers[s.buffer], dtype, more)


def _own(frame: Frame, mask: str | None, k: int, step: int) -> str | None:
    """The lanes of a mask, each for all the elements up to its neighbour: those of one vector."""
    if mask is None:
        return None
    lanes = frame.lanes
    return _spread(frame, mask, [(k * lanes + n) // step for n in range(lanes)])


def _is_aligned(frame: Frame, index: Affine) -> bool:
    """Whether every group of whole vectors begins at a multiple of one's size."""
    others = [c for a, c in index.terms if a != frame.vector]
    return all(known_multiple(c, frame.lanes) for c in (*others, index.const))


def _place(starts: list[int], wanted: int, lanes: int) -> int:
    """Where an element is, counted over all parts."""
    part = next(k for k, s in enumerate(starts) if s <= wanted < s + lanes)
    return part * lanes + wanted - starts[part]


def _spread(frame: Frame, mask: str, takers: Sequence[int | None]) -> str:
    """A mask's lanes for other lanes, off where it has none."""
    lanes, kind = frame.lanes, vector("i1", frame.lanes)
    numbers = ", ".join(f"i32 {lanes if t is None else t}" for t in takers)
    pair = f"{kind} {mask}, {kind} {literal(False, DType.BOOL, lanes)}"
    return frame.f.let(f"shufflevector {pair}, <{lanes} x i32> <{numbers}>")
