"""Accumulators: identities, updates, folding vectors to a scalar, combining threads."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.backends.llvm.elementwise import Shape, emit_accumulation, emit_elementwise
from tofuse.backends.llvm.ir_text import REGISTER, literal, vector
from tofuse.backends.llvm.registers import Frame
from tofuse.ir.kernel import Reduce
from tofuse.ir.types import DType

COMBINE = {
    "prod": "mul",
    "amax": "maximum",
    "amin": "minimum",
    "any": "logical_or",
    "all": "logical_and",
}
EXTREMES = {"amax": "ogt", "amin": "olt"}


@dataclass(frozen=True, eq=False)
class Cell:
    """An accumulator in registers: `unroll` slots of `lanes` lanes (and of positions).

    A long sum gathers in `slots`, which go into the first of `stages` every so many steps. An
    extreme of floats compares numbers only, and notes in `nans` in which lanes it met a nan.
    """

    reduce: Reduce
    dtype: DType
    lanes: int
    slots: tuple[str, ...]
    positions: tuple[str, ...] = ()
    stages: tuple[tuple[str, ...], ...] = ()
    nans: str = ""


def identity(op: str, dtype: DType) -> float | int | bool:
    """What an accumulator starts from."""
    if op in ("sum", "any"):
        return 0
    if op in ("prod", "all"):
        return 1
    if dtype.is_float:
        return float("-inf") if op in ("amax", "argmax") else float("inf")
    bits = dtype.itemsize * 8
    lowest, highest = (
        (0, 2**bits - 1) if dtype is DType.U8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    if dtype is DType.BOOL:
        lowest, highest = 0, 1
    return lowest if op in ("amax", "argmax") else highest


def new_cell(
    frame: Frame, r: Reduce, dtype: DType, lanes: int, unroll: int, stages: int = 0
) -> Cell:
    """Reserve registers and set them to the identity."""
    kind, f = vector(REGISTER[dtype], lanes), frame.f
    slots = tuple(f.alloca(kind) for _ in range(unroll))
    positions: tuple[str, ...] = ()
    if r.position is not None:
        positions = tuple(f.alloca(vector("i64", lanes)) for _ in range(unroll))
    later = tuple(tuple(f.alloca(kind) for _ in range(unroll)) for _ in range(stages))
    noted = r.op in EXTREMES and dtype.is_float and lanes > 1
    nans = f.alloca(vector("i1", lanes)) if noted else ""
    cell = Cell(r, dtype, lanes, slots, positions, later, nans)
    reset(frame, cell)
    return cell


def reset(frame: Frame, cell: Cell) -> None:
    kind, start = vector(REGISTER[cell.dtype], cell.lanes), identity(cell.reduce.op, cell.dtype)
    for slot in (*cell.slots, *(s for later in cell.stages for s in later)):
        frame.f.put(f"store {kind} {literal(start, cell.dtype, cell.lanes)}, ptr {slot}")
    if cell.nans:
        frame.f.put(f"store {vector('i1', cell.lanes)} zeroinitializer, ptr {cell.nans}")
    for slot in cell.positions:
        # past every real position, so that the first element wins even at the identity
        last = literal(2**62, DType.I64, cell.lanes)
        frame.f.put(f"store {vector('i64', cell.lanes)} {last}, ptr {slot}")


def update(frame: Frame, cell: Cell) -> None:
    """Take in the current values of the reduction's argument."""
    f, r, kind = frame.f, cell.reduce, vector(REGISTER[cell.dtype], cell.lanes)
    if cell.nans:
        _note_nans(frame, cell)
    for u, x in enumerate(frame.get(r.arg, cell.dtype)):
        slot = cell.slots[u]
        old = f.let(f"load {kind}, ptr {slot}")
        mask = frame.mask(u)
        if r.position is not None:
            at = frame.lane_index(r.position, u)
            _update_arg(frame, cell, u, x, at, mask)
            continue
        if cell.nans:  # one instruction; what it does with a nan does not matter
            test = f.let(f"fcmp {EXTREMES[r.op]} {kind} {old}, {x}")
            new = f.let(f"select {vector('i1', cell.lanes)} {test}, {kind} {old}, {kind} {x}")
        else:
            new = combine(frame, r.op, old, x, cell.dtype, cell.lanes)
        if mask is not None:
            new = f.let(f"select {vector('i1', cell.lanes)} {mask}, {kind} {new}, {kind} {old}")
        f.put(f"store {kind} {new}, ptr {slot}")


def _note_nans(frame: Frame, cell: Cell) -> None:
    """Whether there is a nan in two vectors takes one comparison."""
    f, bits = frame.f, vector("i1", cell.lanes)
    kind, parts = vector(REGISTER[cell.dtype], cell.lanes), frame.get(cell.reduce.arg, cell.dtype)
    masks = [frame.mask(u) for u in range(len(parts))]
    seen = f.let(f"load {bits}, ptr {cell.nans}")
    if masks[0] is None and len(parts) % 2 == 0:
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
    else:
        pairs = [(x, x) for x in parts]
    for (a, b), mask in zip(pairs, masks, strict=False):
        found = f.let(f"fcmp uno {kind} {a}, {b}")
        if mask is not None:
            found = f.let(f"and {bits} {found}, {mask}")
        seen = f.let(f"or {bits} {seen}, {found}")
    f.put(f"store {bits} {seen}, ptr {cell.nans}")


def _update_arg(frame: Frame, cell: Cell, u: int, x: str, at: str, mask: str | None) -> None:
    f, ints = frame.f, vector("i64", cell.lanes)
    kind, bits = vector(REGISTER[cell.dtype], cell.lanes), vector("i1", cell.lanes)
    old, where = (
        f.let(f"load {kind}, ptr {cell.slots[u]}"),
        f.let(f"load {ints}, ptr {cell.positions[u]}"),
    )
    better = better_of(frame, cell, x, at, old, where, cell.lanes)
    if mask is not None:
        better = f.let(f"and {bits} {better}, {mask}")
    best = f.let(f"select {bits} {better}, {kind} {x}, {kind} {old}")
    place = f.let(f"select {bits} {better}, {ints} {at}, {ints} {where}")
    f.put(f"store {kind} {best}, ptr {cell.slots[u]}")
    f.put(f"store {ints} {place}, ptr {cell.positions[u]}")


def better_of(frame: Frame, cell: Cell, x: str, at: str, old: str, where: str, lanes: int) -> str:
    """Whether (x, at) beats (old, where): larger or smaller, nan first, then the lower position."""
    f, s = frame.f, Shape(cell.dtype, DType.BOOL, lanes)
    op = "gt" if cell.reduce.op == "argmax" else "lt"
    beats = emit_elementwise(f, op, (x, old), s)
    equal = emit_elementwise(f, "eq", (x, old), s)
    if cell.dtype.is_float:
        new_nan = emit_elementwise(f, "isnan", (x,), s)
        old_nan = emit_elementwise(f, "isnan", (old,), s)
        both = f.let(f"and {s.mask} {new_nan}, {old_nan}")
        first = f.let(f"xor {s.mask} {both}, {new_nan}")  # new is nan, old is not
        beats = f.let(f"or {s.mask} {beats}, {first}")
        equal = f.let(f"or {s.mask} {equal}, {both}")
    lower = f.let(f"icmp slt {vector('i64', lanes)} {at}, {where}")
    tie = f.let(f"and {s.mask} {equal}, {lower}")
    return f.let(f"or {s.mask} {beats}, {tie}")


def combine(frame: Frame, op: str, a: str, b: str, dtype: DType, lanes: int) -> str:
    shape = Shape(dtype, dtype, lanes)
    if op == "sum":
        return emit_accumulation(frame.f, a, b, shape)
    return emit_elementwise(frame.f, COMBINE[op], (a, b), shape)


def fold_into(frame: Frame, inner: Cell, outer: Cell) -> None:
    """Add what an inner loop gathered to the accumulator of the loop around it."""
    for x, slot in zip(gathered(frame, inner), outer.slots, strict=True):
        _fold_slot(frame, inner, x, slot)


def fold_stage(frame: Frame, cell: Cell, stage: int) -> None:
    """Add what a stage gathered to the next one, and start it again."""
    rows, kind = (cell.slots, *cell.stages), vector(REGISTER[cell.dtype], cell.lanes)
    start = literal(identity(cell.reduce.op, cell.dtype), cell.dtype, cell.lanes)
    for a, b in zip(rows[stage], rows[stage + 1], strict=True):
        _fold_slot(frame, cell, frame.f.let(f"load {kind}, ptr {a}"), b)
        frame.f.put(f"store {kind} {start}, ptr {a}")


def _fold_slot(frame: Frame, cell: Cell, x: str, slot: str) -> None:
    kind = vector(REGISTER[cell.dtype], cell.lanes)
    old = frame.f.let(f"load {kind}, ptr {slot}")
    total = combine(frame, cell.reduce.op, old, x, cell.dtype, cell.lanes)
    frame.f.put(f"store {kind} {total}, ptr {slot}")


def gathered(frame: Frame, cell: Cell) -> list[str]:
    """The slots of all stages together, the smallest sums first."""
    kind = vector(REGISTER[cell.dtype], cell.lanes)
    parts = [frame.f.let(f"load {kind}, ptr {s}") for s in cell.slots]
    for later in cell.stages:
        more = [frame.f.let(f"load {kind}, ptr {s}") for s in later]
        pairs = zip(parts, more, strict=True)
        parts = [combine(frame, cell.reduce.op, a, b, cell.dtype, cell.lanes) for a, b in pairs]
    return parts


def finish(frame: Frame, cell: Cell) -> tuple[str, str]:
    """Fold all lanes: the scalar result, and the value it was found at for argmax (else '')."""
    r, parts = cell.reduce, gathered(frame, cell)
    if r.position is not None:
        return _finish_arg(frame, cell, parts)
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [combine(frame, r.op, a, b, cell.dtype, cell.lanes) for a, b in pairs]
    lanes, whole = cell.lanes, parts[0]
    while lanes > 1:  # halves, pairwise: a tree, so the error grows with its depth
        sides = [_half(frame, whole, REGISTER[cell.dtype], lanes, k) for k in (0, 1)]
        lanes //= 2
        whole = combine(frame, r.op, sides[0], sides[1], cell.dtype, lanes)
    if cell.nans:
        whole = _or_nan(frame, cell, whole)
    return whole, ""


def _or_nan(frame: Frame, cell: Cell, extreme: str) -> str:
    f, bits, kind = frame.f, vector("i1", cell.lanes), REGISTER[cell.dtype]
    seen = f.let(f"load {bits}, ptr {cell.nans}")
    some = f.call(f"@llvm.vector.reduce.or.v{cell.lanes}i1", "i1", (bits, seen))
    nan = literal(float("nan"), cell.dtype, 1)
    return f.let(f"select i1 {some}, {kind} {nan}, {kind} {extreme}")


def _finish_arg(frame: Frame, cell: Cell, parts: list[str]) -> tuple[str, str]:
    f, lanes = frame.f, cell.lanes
    ints = vector("i64", lanes)
    found = [
        (x, f.let(f"load {ints}, ptr {p}")) for x, p in zip(parts, cell.positions, strict=True)
    ]
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [_best(frame, cell, a, b, lanes) for a, b in pairs]
    best, where = found[0]
    while lanes > 1:
        low, high = (
            (
                _half(frame, best, REGISTER[cell.dtype], lanes, k),
                _half(frame, where, "i64", lanes, k),
            )
            for k in (0, 1)
        )
        lanes //= 2
        best, where = _best(frame, cell, low, high, lanes)
    return where, best


def _best(
    frame: Frame, cell: Cell, a: tuple[str, str], b: tuple[str, str], lanes: int
) -> tuple[str, str]:
    """Lane by lane the better of two (value, position) pairs."""
    f, kind, bits = frame.f, vector(REGISTER[cell.dtype], lanes), vector("i1", lanes)
    better = better_of(frame, cell, b[0], b[1], a[0], a[1], lanes)
    value = f.let(f"select {bits} {better}, {kind} {b[0]}, {kind} {a[0]}")
    ints = vector("i64", lanes)
    return value, f.let(f"select {bits} {better}, {ints} {b[1]}, {ints} {a[1]}")


def _half(frame: Frame, x: str, element: str, lanes: int, side: int) -> str:
    """The lower or upper half of a vector; a scalar where one lane is left."""
    kind, half = vector(element, lanes), lanes // 2
    if half == 1:
        return frame.f.let(f"extractelement {kind} {x}, i64 {side}")
    at = ", ".join(f"i32 {side * half + k}" for k in range(half))
    mask = f"<{half} x i32> <{at}>"
    return frame.f.let(f"shufflevector {kind} {x}, {kind} poison, {mask}")
