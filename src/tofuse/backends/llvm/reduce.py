"""Reductions in registers: identities, updates, and the fold of vectors to a scalar."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.backends.llvm.elementwise import OpSignature, emit_accumulation, emit_elementwise
from tofuse.backends.llvm.function_emitter import FunctionEmitter
from tofuse.backends.llvm.ir_text import REGISTER_TYPES, literal, vector_type
from tofuse.ir.kernel import Reduce
from tofuse.ir.types import DType
from tofuse.ops.table import REDUCTION_COMBINES

EXTREMUM_PREDICATES = {"amax": "ogt", "amin": "olt"}


@dataclass(frozen=True, eq=False)
class RegisterAccumulator:
    """The state of a reduction in `unroll` stack slots of `lanes` lanes, which LLVM promotes.

    `positions` are the slots of argmax and argmin. A long sum adds into `slots`; every so many
    steps they are added to the first of `stages`. amax and amin of floats compare without regard
    to nan and record in `nan_lanes` which lanes have met one.
    """

    reduce: Reduce
    dtype: DType
    lanes: int
    slots: tuple[str, ...]
    positions: tuple[str, ...] = ()
    stages: tuple[tuple[str, ...], ...] = ()
    nan_lanes: str = ""

    @property
    def type(self) -> str:
        return vector_type(REGISTER_TYPES[self.dtype], self.lanes)

    @property
    def mask_type(self) -> str:
        return vector_type("i1", self.lanes)

    @property
    def position_type(self) -> str:
        return vector_type("i64", self.lanes)


def identity(op: str, dtype: DType) -> float | int | bool:
    """Return the start value of an accumulator."""
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


def new_accumulator(
    emitter: FunctionEmitter, r: Reduce, dtype: DType, lanes: int, unroll: int, stages: int = 0
) -> RegisterAccumulator:
    """Reserve the slots of an accumulator and reset them."""
    ty, f = vector_type(REGISTER_TYPES[dtype], lanes), emitter.f
    slots = tuple(f.alloca(ty) for _ in range(unroll))
    positions: tuple[str, ...] = ()
    if r.position is not None:
        positions = tuple(f.alloca(vector_type("i64", lanes)) for _ in range(unroll))
    stage_slots = tuple(tuple(f.alloca(ty) for _ in range(unroll)) for _ in range(stages))
    records_nan = r.op in EXTREMUM_PREDICATES and dtype.is_float and lanes > 1
    nan_lanes = f.alloca(vector_type("i1", lanes)) if records_nan else ""
    acc = RegisterAccumulator(r, dtype, lanes, slots, positions, stage_slots, nan_lanes)
    reset(emitter, acc)
    return acc


def reset(emitter: FunctionEmitter, acc: RegisterAccumulator) -> None:
    """Set the slots of an accumulator to the identity."""
    start = literal(identity(acc.reduce.op, acc.dtype), acc.dtype, acc.lanes)
    for slot in (*acc.slots, *(s for stage in acc.stages for s in stage)):
        emitter.f.put(f"store {acc.type} {start}, ptr {slot}")
    if acc.nan_lanes:
        emitter.f.put(f"store {acc.mask_type} zeroinitializer, ptr {acc.nan_lanes}")
    for slot in acc.positions:
        # after every real position, so that the first element wins even if it is the identity
        last = literal(2**62, DType.I64, acc.lanes)
        emitter.f.put(f"store {acc.position_type} {last}, ptr {slot}")


def update(emitter: FunctionEmitter, acc: RegisterAccumulator) -> None:
    """Combine the current values of the reduction's argument into the accumulator."""
    f, r, ty = emitter.f, acc.reduce, acc.type
    if acc.nan_lanes:
        _record_nan_lanes(emitter, acc)
    for u, x in enumerate(emitter.operands(r.arg, acc.dtype)):
        slot = acc.slots[u]
        old = f.let(f"load {ty}, ptr {slot}")
        mask = emitter.mask(u)
        if r.position is not None:
            at = emitter.lane_indices(r.position, u)
            _update_position(emitter, acc, u, x, at, mask)
            continue
        if acc.nan_lanes:  # one instruction; its result for a nan is not used
            test = f.let(f"fcmp {EXTREMUM_PREDICATES[r.op]} {ty} {old}, {x}")
            new = f.let(f"select {acc.mask_type} {test}, {ty} {old}, {ty} {x}")
        else:
            new = combine(emitter, r.op, old, x, acc.dtype, acc.lanes)
        if mask is not None:
            new = f.let(f"select {acc.mask_type} {mask}, {ty} {new}, {ty} {old}")
        f.put(f"store {ty} {new}, ptr {slot}")


def _record_nan_lanes(emitter: FunctionEmitter, acc: RegisterAccumulator) -> None:
    """Or the nan lanes of the argument into `nan_lanes`, with one comparison for two vectors."""
    f, mask_ty = emitter.f, acc.mask_type
    vectors = emitter.operands(acc.reduce.arg, acc.dtype)
    masks = [emitter.mask(u) for u in range(len(vectors))]
    nan_lanes = f.let(f"load {mask_ty}, ptr {acc.nan_lanes}")
    if masks[0] is None and len(vectors) % 2 == 0:
        pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
    else:
        pairs = [(x, x) for x in vectors]
    for (a, b), mask in zip(pairs, masks, strict=False):
        is_nan = f.let(f"fcmp uno {acc.type} {a}, {b}")
        if mask is not None:
            is_nan = f.let(f"and {mask_ty} {is_nan}, {mask}")
        nan_lanes = f.let(f"or {mask_ty} {nan_lanes}, {is_nan}")
    f.put(f"store {mask_ty} {nan_lanes}, ptr {acc.nan_lanes}")


def _update_position(
    emitter: FunctionEmitter,
    acc: RegisterAccumulator,
    u: int,
    value: str,
    position: str,
    mask: str | None,
) -> None:
    f, slot, position_slot = emitter.f, acc.slots[u], acc.positions[u]
    old_value = f.let(f"load {acc.type}, ptr {slot}")
    old = old_value, f.let(f"load {acc.position_type}, ptr {position_slot}")
    best, at = select_better(emitter, acc, old, (value, position), acc.lanes, mask)
    f.put(f"store {acc.type} {best}, ptr {slot}")
    f.put(f"store {acc.position_type} {at}, ptr {position_slot}")


def select_better(
    emitter: FunctionEmitter,
    acc: RegisterAccumulator,
    old: tuple[str, str],
    new: tuple[str, str],
    lanes: int,
    mask: str | None = None,
) -> tuple[str, str]:
    """Return the better of two (value, position) pairs in each lane: larger or smaller, nan first.

    Of equal values, the one at the lower position wins. Outside `mask`, the old pair stays.
    """
    f, s = emitter.f, OpSignature(acc.dtype, DType.BOOL, lanes)
    values = new[0], old[0]
    beats = emit_elementwise(f, "gt" if acc.reduce.op == "argmax" else "lt", values, s)
    equal = emit_elementwise(f, "eq", values, s)
    if acc.dtype.is_float:
        new_nan, old_nan = (emit_elementwise(f, "isnan", (v,), s) for v in values)
        both = f.let(f"and {s.mask_type} {new_nan}, {old_nan}")
        first = f.let(f"xor {s.mask_type} {both}, {new_nan}")  # the new value alone is nan
        beats = f.let(f"or {s.mask_type} {beats}, {first}")
        equal = f.let(f"or {s.mask_type} {equal}, {both}")
    position_ty = vector_type("i64", lanes)
    lower = f.let(f"icmp slt {position_ty} {new[1]}, {old[1]}")
    tie = f.let(f"and {s.mask_type} {equal}, {lower}")
    better = f.let(f"or {s.mask_type} {beats}, {tie}")
    if mask is not None:
        better = f.let(f"and {s.mask_type} {better}, {mask}")
    value, position = (
        f.let(f"select {s.mask_type} {better}, {ty} {b}, {ty} {a}")
        for ty, a, b in zip((s.operand_type, position_ty), old, new, strict=True)
    )
    return value, position


def combine(emitter: FunctionEmitter, op: str, a: str, b: str, dtype: DType, lanes: int) -> str:
    """Emit the reduction's combination of two values."""
    signature = OpSignature(dtype, dtype, lanes)
    if op == "sum":
        return emit_accumulation(emitter.f, a, b, signature)
    return emit_elementwise(emitter.f, REDUCTION_COMBINES[op], (a, b), signature)


def fold_into(
    emitter: FunctionEmitter, inner: RegisterAccumulator, outer: RegisterAccumulator
) -> None:
    """Combine an inner loop's accumulator into that of the loop around it."""
    for x, slot in zip(combine_stages(emitter, inner), outer.slots, strict=True):
        _fold_slot(emitter, inner, x, slot)


def fold_stage(emitter: FunctionEmitter, acc: RegisterAccumulator, stage: int) -> None:
    """Add a stage to the next one and reset it."""
    rows, ty = (acc.slots, *acc.stages), acc.type
    start = literal(identity(acc.reduce.op, acc.dtype), acc.dtype, acc.lanes)
    for a, b in zip(rows[stage], rows[stage + 1], strict=True):
        _fold_slot(emitter, acc, emitter.f.let(f"load {ty}, ptr {a}"), b)
        emitter.f.put(f"store {ty} {start}, ptr {a}")


def _fold_slot(emitter: FunctionEmitter, acc: RegisterAccumulator, x: str, slot: str) -> None:
    old = emitter.f.let(f"load {acc.type}, ptr {slot}")
    total = combine(emitter, acc.reduce.op, old, x, acc.dtype, acc.lanes)
    emitter.f.put(f"store {acc.type} {total}, ptr {slot}")


def combine_stages(emitter: FunctionEmitter, acc: RegisterAccumulator) -> list[str]:
    """Return the slots with all stages added, the smallest sums first."""
    parts = [emitter.f.let(f"load {acc.type}, ptr {s}") for s in acc.slots]
    for later in acc.stages:
        more = [emitter.f.let(f"load {acc.type}, ptr {s}") for s in later]
        pairs = zip(parts, more, strict=True)
        parts = [combine(emitter, acc.reduce.op, a, b, acc.dtype, acc.lanes) for a, b in pairs]
    return parts


def horizontal_reduce(emitter: FunctionEmitter, acc: RegisterAccumulator) -> tuple[str, str]:
    """Fold all lanes to the scalar result; argmax and argmin also return the extreme value.

    Other reductions return "" in its place.
    """
    r, parts = acc.reduce, combine_stages(emitter, acc)
    if r.position is not None:
        return _horizontal_argreduce(emitter, acc, parts)
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [combine(emitter, r.op, a, b, acc.dtype, acc.lanes) for a, b in pairs]
    lanes, whole = acc.lanes, parts[0]
    while lanes > 1:  # combine halves: the error grows with the depth of the tree
        sides = [_half_vector(emitter, whole, REGISTER_TYPES[acc.dtype], lanes, k) for k in (0, 1)]
        lanes //= 2
        whole = combine(emitter, r.op, sides[0], sides[1], acc.dtype, lanes)
    if acc.nan_lanes:
        whole = _nan_if_recorded(emitter, acc, whole)
    return whole, ""


def _nan_if_recorded(emitter: FunctionEmitter, acc: RegisterAccumulator, extremum: str) -> str:
    """Return nan if any lane has recorded one, else the extremum."""
    f, ty = emitter.f, REGISTER_TYPES[acc.dtype]
    lanes = f.let(f"load {acc.mask_type}, ptr {acc.nan_lanes}")
    some = f.call(f"@llvm.vector.reduce.or.v{acc.lanes}i1", "i1", (acc.mask_type, lanes))
    nan = literal(float("nan"), acc.dtype, 1)
    return f.let(f"select i1 {some}, {ty} {nan}, {ty} {extremum}")


def _horizontal_argreduce(
    emitter: FunctionEmitter, acc: RegisterAccumulator, parts: list[str]
) -> tuple[str, str]:
    f, lanes = emitter.f, acc.lanes
    int_ty = vector_type("i64", lanes)
    found = [
        (x, f.let(f"load {int_ty}, ptr {p}")) for x, p in zip(parts, acc.positions, strict=True)
    ]
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [select_better(emitter, acc, a, b, lanes) for a, b in pairs]
    best, where = found[0]
    while lanes > 1:
        low, high = (
            (
                _half_vector(emitter, best, REGISTER_TYPES[acc.dtype], lanes, k),
                _half_vector(emitter, where, "i64", lanes, k),
            )
            for k in (0, 1)
        )
        lanes //= 2
        best, where = select_better(emitter, acc, low, high, lanes)
    return where, best


def _half_vector(emitter: FunctionEmitter, x: str, element: str, lanes: int, side: int) -> str:
    """Return the lower or upper half of a vector; a scalar if one lane is left."""
    ty, half = vector_type(element, lanes), lanes // 2
    if half == 1:
        return emitter.f.let(f"extractelement {ty} {x}, i64 {side}")
    at = ", ".join(f"i32 {side * half + k}" for k in range(half))
    mask = f"<{half} x i32> <{at}>"
    return emitter.f.let(f"shufflevector {ty} {x}, {ty} poison, {mask}")
