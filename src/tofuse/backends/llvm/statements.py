"""One kernel statement at its place in the loops, as LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.llvm.elementwise import Shape, emit_elementwise
from tofuse.backends.llvm.ir_text import REGISTER, literal, vector
from tofuse.backends.llvm.peel import is_aligned
from tofuse.backends.llvm.random import (
    KEY_WORDS,
    load_word,
    philox_definition,
    philox_symbol,
    splat,
    uniform_from_bits,
)
from tofuse.backends.llvm.register_transpose import turned_element
from tofuse.backends.llvm.registers import Frame, fetch, register
from tofuse.backends.llvm.strided_access import load_group, load_spaced, store_group
from tofuse.ir.dims import known_multiple
from tofuse.ir.interleave import is_spaced
from tofuse.ir.kernel import Compute, Inside, Iota, Load, Store, Take, Uniform
from tofuse.ir.schedule import Schedule
from tofuse.ir.types import DType

BLOCK = 64  # elements that share 16 counters
LANES = 16


def emit_load(frame: Frame, s: Load, memory: DType) -> None:
    if _never(frame, s):
        return
    if s in frame.turned:
        slot = turned_element(frame, s, register(memory))
        frame.put(s.name, [frame.load(slot, register(memory), frame.lanes, None)], s.dtype)
        return
    if s in frame.groups:
        if frame.groups[s]:
            load_group(frame, frame.groups[s], memory)
        return
    pointer = frame.pointers[s.buffer]
    step = s.index.coefficient(frame.vector) if frame.vector is not None else 0
    parts = []
    at = frame.affine(s.index)
    for u in range(frame.unroll):
        mask = frame.mask(u, s.guard)
        if frame.vector is None or step == 1:
            slot = frame.element(pointer, memory, _plus(frame, at, u * frame.lanes))
            parts.append(frame.load(slot, memory, frame.lanes, mask))
        elif step == 0:
            parts.append(_load_same(frame, pointer, memory, at, mask))
        elif isinstance(step, int) and is_spaced(step, frame.lanes):
            first = _plus(frame, at, u * frame.lanes * step)
            parts.append(load_spaced(frame, pointer, memory, first, step, mask))
        else:
            lanes = frame.lane_index(s.index, u)
            parts.append(frame.gather(pointer, memory, lanes, frame.lanes, mask))
    frame.put(s.name, parts, s.dtype)


def emit_ahead(
    frame: Frame, loads: Sequence[Load], memory: dict[str, DType], schedule: Schedule
) -> None:
    """Ask for the cache lines of one group of vectors; may lie past the end of a buffer."""
    elements = schedule.vector * schedule.unroll
    for s in loads:
        dtype = memory[s.buffer]
        fetch(frame, s.buffer, dtype, frame.affine(s.index), elements)


def _load_same(frame: Frame, pointer: str, memory: DType, at: str, mask: str | None) -> str:
    """One element for all lanes, behind a mask that varies: read it only if some lane wants it."""
    f, lanes, dtype = frame.f, frame.lanes, register(memory)
    slot, kind = frame.element(pointer, memory, at), REGISTER[dtype]
    if mask is None or lanes == 1:
        return splat(f, frame.load(slot, memory, 1, mask), kind, lanes)
    bits, wide = vector("i1", lanes), vector(kind, lanes)
    some = f.call(f"@llvm.vector.reduce.or.v{lanes}i1", "i1", (bits, mask))
    value = splat(f, frame.load(slot, memory, 1, some), kind, lanes)
    return f.let(f"select {bits} {mask}, {wide} {value}, {wide} {literal(0, dtype, lanes)}")


def _never(frame: Frame, s: Load | Take) -> bool:
    """Whether no lane passes the guard here; then the value is zero."""
    if s.guard is None or frame.known.get(s.guard, True):
        return False
    frame.put(s.name, [literal(0, register(s.dtype), frame.lanes)] * frame.unroll, s.dtype)
    return True


def emit_take(frame: Frame, s: Take, memory: DType) -> None:
    if _never(frame, s):
        return
    f, pointer = frame.f, frame.pointers[s.buffer]
    row = frame.env[s.by].lanes == 1 and frame.vector is not None
    extent = frame.size(s.extent)
    stride = frame.size(s.stride)
    if row and s.index.coefficient(frame.vector or "") == 1:
        by, good = _checked(frame, s, frame.env[s.by].names[0], extent, 1, _any_passes(frame, s))
        at = f.let(f"add i64 {frame.affine(s.index)}, {f.let(f'mul i64 {by}, {stride}')}")
        parts = []
        for u in range(frame.unroll):
            mask, all_good = frame.mask(u, s.guard), splat(f, good, "i1", frame.lanes)
            mask = (
                all_good
                if mask is None
                else f.let(f"and {vector('i1', frame.lanes)} {mask}, {all_good}")
            )
            slot = frame.element(pointer, memory, _plus(frame, at, u * frame.lanes))
            parts.append(frame.load(slot, memory, frame.lanes, mask))
        frame.put(s.name, parts, s.dtype)
        return
    kind, parts = vector("i64", frame.lanes), []
    for u, by in enumerate(frame.get(s.by, DType.I64)):
        by, good = _checked(frame, s, by, extent, frame.lanes, frame.mask(u, s.guard))
        step = f.let(f"mul {kind} {by}, {splat(f, stride, 'i64', frame.lanes)}")
        at = f.let(f"add {kind} {frame.lane_index(s.index, u)}, {step}")
        if frame.lanes == 1:
            parts.append(frame.load(frame.element(pointer, memory, at), memory, 1, good))
        else:
            parts.append(frame.gather(pointer, memory, at, frame.lanes, good))
    frame.put(s.name, parts, s.dtype)


def _any_passes(frame: Frame, s: Take) -> str | None:
    """Whether the guard passes in some lane of some vector; None where it does in all."""
    if s.guard is None or frame.known.get(s.guard):
        return None
    f, guard, lanes = frame.f, frame.env[s.guard], frame.lanes
    if guard.lanes == 1:
        return guard.names[0]
    bits, passed = vector("i1", lanes), [frame.mask(u, s.guard) for u in range(frame.unroll)]
    some = [f.call(f"@llvm.vector.reduce.or.v{lanes}i1", "i1", (bits, m)) for m in passed if m]
    total, *rest = some
    for one in rest:
        total = f.let(f"or i1 {total}, {one}")
    return total


def _checked(
    frame: Frame, s: Take, by: str, extent: str, lanes: int, mask: str | None
) -> tuple[str, str]:
    """The index, wrapped if asked, and the lanes where it may be read; others raise the flag."""
    f, kind, bits = frame.f, vector("i64", lanes), vector("i1", lanes)
    limit = splat(f, extent, "i64", lanes)
    if s.wrap:
        below = f.let(f"icmp slt {kind} {by}, {literal(0, DType.I64, lanes)}")
        up = f.let(f"add {kind} {by}, {limit}")
        by = f.let(f"select {bits} {below}, {kind} {up}, {kind} {by}")
    good = f.let(f"icmp ult {kind} {by}, {limit}")
    bad = f.let(f"xor {bits} {good}, {literal(True, DType.BOOL, lanes)}")
    if mask is not None:
        bad = f.let(f"and {bits} {bad}, {mask}")
        good = f.let(f"and {bits} {good}, {mask}")
    if lanes > 1:
        bad = f.call(f"@llvm.vector.reduce.or.v{lanes}i1", "i1", (bits, bad))
    old = f.let(f"load i1, ptr {frame.status}")
    f.put(f"store i1 {f.let(f'or i1 {old}, {bad}')}, ptr {frame.status}")
    return by, good


def emit_compute(frame: Frame, s: Compute) -> None:
    shape = Shape(s.operand_dtype, s.dtype, frame.lanes)
    dtypes = [s.operand_dtype] * len(s.args)
    if s.op == "where":
        dtypes[0] = DType.BOOL
    args = [frame.get(a, d) for a, d in zip(s.args, dtypes, strict=True)]
    uniform = all(isinstance(a, str) and frame.env[a].lanes == 1 for a in s.args)
    if uniform and frame.vector is not None:  # the same in every lane and vector
        args = [a[:1] * frame.unroll for a in args]
    parts = [
        emit_elementwise(frame.f, s.op, [a[u] for a in args], shape) for u in range(frame.unroll)
    ]
    frame.put(s.name, parts, s.dtype)


def emit_iota(frame: Frame, s: Iota) -> None:
    parts, shape = [], Shape(DType.I64, s.dtype, frame.lanes)
    for u in range(frame.unroll):
        at = frame.lane_index(s.index, u)
        parts.append(
            at if s.dtype is DType.I64 else emit_elementwise(frame.f, "convert", [at], shape)
        )
    frame.put(s.name, parts, s.dtype)


def emit_inside(frame: Frame, s: Inside) -> None:
    f, lanes = frame.f, frame.lanes
    kind, bits, parts = vector("i64", lanes), vector("i1", lanes), []
    if s.name in frame.known:
        frame.put(s.name, [literal(frame.known[s.name], DType.BOOL, lanes)] * frame.unroll, s.dtype)
        return
    for u in range(frame.unroll):
        at = frame.lane_index(s.index, u)
        above = f.let(f"icmp sge {kind} {at}, {splat(f, frame.size(s.lo), 'i64', lanes)}")
        below = f.let(f"icmp slt {kind} {at}, {splat(f, frame.size(s.hi), 'i64', lanes)}")
        both = f.let(f"and {bits} {above}, {below}")
        if s.guard is not None:
            both = f.let(f"and {bits} {both}, {frame.get(s.guard, DType.BOOL)[u]}")
        parts.append(both)
    frame.put(s.name, parts, DType.BOOL)


def emit_store(frame: Frame, s: Store, memory: DType) -> None:
    pointer, of = frame.pointers[s.buffer], register(memory)
    if s in frame.groups:
        if frame.groups[s]:
            store_group(frame, frame.groups[s], memory)
        return
    step = s.index.coefficient(frame.vector) if frame.vector is not None else 0
    values = frame.get(s.value, of)
    if s in frame.turned:
        frame.store(turned_element(frame, s, of), of, values[0], frame.lanes, None)
        return
    at = frame.affine(s.index)
    for u in range(frame.unroll):
        mask = frame.mask(u)
        if frame.vector is None or step == 1:
            slot = frame.element(pointer, memory, _plus(frame, at, u * frame.lanes))
            if mask is None and _is_streamed(frame, s):
                frame.stream(slot, memory, values[u], frame.lanes)
            else:
                frame.store(slot, memory, values[u], frame.lanes, mask)
        else:
            lanes = frame.lane_index(s.index, u)
            frame.scatter(pointer, memory, lanes, values[u], frame.lanes, mask)


def _is_streamed(frame: Frame, s: Store) -> bool:
    """Whether whole vectors of a store go past the caches."""
    if frame.vector is None or s.buffer not in frame.streams:
        return False
    return s in frame.aligned if frame.aligned else is_aligned(frame, s.index, frame.vector)


def _plus(frame: Frame, at: str, more: int) -> str:
    return frame.f.let(f"add i64 {at}, {more}") if more else at


# -- random numbers ------------------------------------------------------------------------------


def emit_uniform(frame: Frame, s: Uniform) -> None:
    f = frame.f
    keys = frame.scratch_pointer(frame.nest.keys[s.seed])
    per_row = f.let(f"add i64 {frame.size(s.extent)}, {BLOCK - 1}")
    per_row = f.let(f"sdiv i64 {per_row}, {BLOCK}")
    rows = _Rows(frame, s, keys, per_row)
    parts = rows.blocks() if _in_blocks(frame, s) else rows.each()
    frame.put(s.name, [uniform_from_bits(f, p, frame.lanes) for p in parts], DType.F32)


def _in_blocks(frame: Frame, s: Uniform) -> bool:
    """Whether one pass of the vector loop is one block of the generator."""
    if frame.vector is None or frame.unroll * frame.lanes != BLOCK or LANES % frame.lanes:
        return False
    others = [c for a, c in s.col.terms if a != frame.vector] + [s.col.const]
    others += [lp.strip for lp in frame.nest.schedule.loops if lp.axis == frame.vector]
    return s.col.coefficient(frame.vector) == 1 and all(known_multiple(c, BLOCK) for c in others)


class _Rows:
    """The Philox words of one statement."""

    def __init__(self, frame: Frame, s: Uniform, keys: str, per_row: str) -> None:
        self.frame, self.s, self.keys, self.per_row = frame, s, keys, per_row

    def words(self, counter: str, lanes: int) -> list[str]:
        """The four words of 64-bit counters."""
        f, kind, wide = self.frame.f, vector("i32", lanes), vector("i64", lanes)
        low = f.let(f"trunc {wide} {counter} to {kind}")
        high = f.let(f"lshr {wide} {counter}, {literal(32, DType.I64, lanes)}")
        high = f.let(f"trunc {wide} {high} to {kind}")
        c2 = splat(f, load_word(f, self.keys, KEY_WORDS - 1), "i32", lanes)
        c3 = splat(f, f.let(f"trunc i64 {self.frame.size(self.s.stream)} to i32"), "i32", lanes)
        symbol = philox_symbol(lanes)
        f.declared[symbol] = philox_definition(lanes)
        result = f"{{ {', '.join([kind] * 4)} }}"
        all_four = f.let(
            f"call {result} {symbol}({kind} {low}, {kind} {high}, {kind} {c2}, {kind} {c3}, "
            f"ptr {self.keys})"
        )
        return [f.let(f"extractvalue {result} {all_four}, {k}") for k in range(4)]

    def blocks(self) -> list[str]:
        """All four words of 16 counters: the next 64 elements."""
        f, lanes = self.frame.f, self.frame.lanes
        row = f.let(f"mul i64 {self.frame.affine(self.s.row)}, {self.per_row}")
        col = f.let(f"lshr i64 {self.frame.affine(self.s.col)}, 6")
        first = f.let(f"shl i64 {f.let(f'add i64 {row}, {col}')}, 4")
        kind, shares = vector("i64", lanes), []
        for h in range(LANES // lanes):
            ramp = ", ".join(f"i64 {h * lanes + k}" for k in range(lanes))
            ramp = f"<{ramp}>" if lanes > 1 else str(h)
            counter = f.let(f"add {kind} {splat(f, first, 'i64', lanes)}, {ramp}")
            shares.append(self.words(counter, lanes))
        return [shares[h][k] for k in range(4) for h in range(LANES // lanes)]

    def each(self) -> list[str]:
        """Any elements: a counter for each lane, and the one word of four that is its own."""
        f, frame, lanes = self.frame.f, self.frame, self.frame.lanes
        kind, parts = vector("i64", lanes), []
        for u in range(frame.unroll):
            row, col = frame.lane_index(self.s.row, u), frame.lane_index(self.s.col, u)
            row = f.let(f"mul {kind} {row}, {splat(f, self.per_row, 'i64', lanes)}")
            group = f.let(f"lshr {kind} {col}, {literal(6, DType.I64, lanes)}")
            group = f.let(f"add {kind} {row}, {group}")
            group = f.let(f"shl {kind} {group}, {literal(4, DType.I64, lanes)}")
            lane = f.let(f"and {kind} {col}, {literal(15, DType.I64, lanes)}")
            words = self.words(f.let(f"or {kind} {group}, {lane}"), lanes)
            which = f.let(f"lshr {kind} {col}, {literal(4, DType.I64, lanes)}")
            which = f.let(f"and {kind} {which}, {literal(3, DType.I64, lanes)}")
            picked, ints, bits = words[0], vector("i32", lanes), vector("i1", lanes)
            for k in range(1, 4):
                own = f.let(f"icmp eq {kind} {which}, {literal(k, DType.I64, lanes)}")
                picked = f.let(f"select {bits} {own}, {ints} {words[k]}, {ints} {picked}")
            parts.append(picked)
        return parts
