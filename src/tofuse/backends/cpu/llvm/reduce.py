"""Reductions in registers: identities, updates, and the fold of vectors to a scalar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tofuse.backends.cpu.llvm.elementwise import emit_accumulation, emit_elementwise
from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter
from tofuse.backends.cpu.llvm.ir_text import REGISTER_TYPES, FunctionBuilder, literal, vector_type
from tofuse.ir.kernel import Reduce
from tofuse.ir.types import DType
from tofuse.ops.table import NO_POSITION, REDUCTION_COMBINES, reduction_identity

EXTREMUM_PREDICATES = {"amax": "ogt", "amin": "olt"}

Element = tuple[str, ...]  # operands: a value; of argmax and argmin, also its position
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RegisterAccumulator:
    """The state of a reduction in stack slots of `lanes` lanes, which LLVM promotes.

    There is a slot for each vector of a step, or several if a step adds several products. A slot
    is the address of each operand of an element. A long sum adds into `slots`; every so many steps
    they are added to the first of `stages`. amax and amin of floats compare without regard to nan
    and record in `nan_lanes` which lanes have met one.
    """

    reduce: Reduce
    dtype: DType
    lanes: int
    slots: tuple[Element, ...]
    stages: tuple[tuple[Element, ...], ...] = ()
    nan_lanes: str = ""

    @property
    def mask_type(self) -> str:
        return vector_type("i1", self.lanes)

    @property
    def types(self) -> tuple[str, ...]:
        """Return the types of an element's operands."""
        return _element_types(self.reduce, self.dtype, self.lanes)

    def load(self, f: FunctionBuilder, slot: Element) -> Element:
        return tuple(f.let(f"load {ty}, ptr {p}") for ty, p in zip(self.types, slot, strict=True))

    def store(self, f: FunctionBuilder, slot: Element, element: Element) -> None:
        for ty, x, p in zip(self.types, element, slot, strict=True):
            f.put(f"store {ty} {x}, ptr {p}")


def _element_types(r: Reduce, dtype: DType, lanes: int) -> tuple[str, ...]:
    value = vector_type(REGISTER_TYPES[dtype], lanes)
    return (value,) if r.position is None else (value, vector_type("i64", lanes))


def new_accumulator(
    emitter: FunctionEmitter, r: Reduce, dtype: DType, lanes: int, unroll: int, stages: int = 0
) -> RegisterAccumulator:
    """Reserve the slots of an accumulator and set them to the identity."""
    f, types = emitter.f, _element_types(r, dtype, lanes)
    slots, *stage_slots = (
        tuple(tuple(map(f.alloca, types)) for _ in range(unroll)) for _ in range(1 + stages)
    )
    records_nan = r.op in EXTREMUM_PREDICATES and dtype.is_float and lanes > 1
    nan_lanes = f.alloca(vector_type("i1", lanes)) if records_nan else ""
    acc = RegisterAccumulator(r, dtype, lanes, slots, tuple(stage_slots), nan_lanes)
    for slot in (*slots, *(s for stage in stage_slots for s in stage)):
        acc.store(f, slot, _start(acc))
    if nan_lanes:
        f.put(f"store {acc.mask_type} zeroinitializer, ptr {nan_lanes}")
    return acc


def _start(acc: RegisterAccumulator) -> Element:
    """Return the element that an accumulator starts with."""
    start = literal(reduction_identity(acc.reduce.op, acc.dtype), acc.dtype, acc.lanes)
    return (start, literal(NO_POSITION, DType.I64, acc.lanes))[: len(acc.types)]


def update(emitter: FunctionEmitter, acc: RegisterAccumulator, terms: Sequence[str]) -> None:
    """Combine the current values of `terms` into the slots of the accumulator, in turn."""
    if acc.nan_lanes:
        _record_nan_lanes(emitter, acc)
    for k, term in enumerate(terms):
        for u, x in enumerate(emitter.operands(term, acc.dtype)):
            element = current_element(emitter, acc.reduce, x, u)
            slot = acc.slots[(k * emitter.unroll + u) % len(acc.slots)]
            _combine_into(emitter, acc, slot, element, emitter.mask(u))


def current_element(emitter: FunctionEmitter, r: Reduce, x: str, u: int) -> Element:
    """Return vector `u` of the argument, with its positions if the reduction has any."""
    return (x,) if r.position is None else (x, emitter.lane_indices(r.position, u))


def _combine_into(
    emitter: FunctionEmitter,
    acc: RegisterAccumulator,
    slot: Element,
    element: Element,
    mask: str | None = None,
) -> None:
    """Combine an element into a slot, in the lanes of the mask."""
    f, r, old = emitter.f, acc.reduce, acc.load(emitter.f, slot)
    if acc.nan_lanes:  # one instruction; its result for a nan is not used
        (ty,), (a,), (b,) = acc.types, old, element
        test = f.let(f"fcmp {EXTREMUM_PREDICATES[r.op]} {ty} {a}, {b}")
        new: Element = (f.let(f"select {acc.mask_type} {test}, {ty} {a}, {ty} {b}"),)
    else:
        new = combine(f, r, acc.dtype, acc.lanes, old, element)
    if mask is not None:
        new = select_lanes(f, r, acc.dtype, acc.lanes, mask, new, old)
    acc.store(f, slot, new)


def select_lanes(
    f: FunctionBuilder,
    r: Reduce,
    dtype: DType,
    lanes: int,
    mask: str,
    new: Element,
    old: Element,
) -> Element:
    """Return the new element in the lanes of the mask, the old one elsewhere."""
    mask_ty = vector_type("i1", lanes)
    return tuple(
        f.let(f"select {mask_ty} {mask}, {ty} {a}, {ty} {b}")
        for ty, a, b in zip(_element_types(r, dtype, lanes), new, old, strict=True)
    )


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
        is_nan = f.let(f"fcmp uno {acc.types[0]} {a}, {b}")
        is_nan = f.intersect(is_nan, mask, acc.lanes)
        nan_lanes = f.let(f"or {mask_ty} {nan_lanes}, {is_nan}")
    f.put(f"store {mask_ty} {nan_lanes}, ptr {acc.nan_lanes}")


def combine(
    f: FunctionBuilder, r: Reduce, dtype: DType, lanes: int, old: Element, new: Element
) -> Element:
    """Emit the reduction's combination of two elements.

    argmax and argmin keep the better one in each lane: larger or smaller, nan first. Of equal
    values, the one at the lower position wins.
    """
    if r.position is None:
        if r.op == "sum":
            return (emit_accumulation(f, old[0], new[0], dtype, lanes),)
        name = REDUCTION_COMBINES[r.op]
        return (emit_elementwise(f, name, (old[0], new[0]), dtype, dtype, lanes),)
    values, test, mask_ty = (new[0], old[0]), (dtype, DType.BOOL, lanes), vector_type("i1", lanes)
    better = emit_elementwise(f, "gt" if r.op == "argmax" else "lt", values, *test)
    equal = emit_elementwise(f, "eq", values, *test)
    if dtype.is_float:
        new_nan, old_nan = (emit_elementwise(f, "isnan", (v,), *test) for v in values)
        both = f.let(f"and {mask_ty} {new_nan}, {old_nan}")
        first = f.let(f"xor {mask_ty} {both}, {new_nan}")  # the new value alone is nan
        better = f.let(f"or {mask_ty} {better}, {first}")
        equal = f.let(f"or {mask_ty} {equal}, {both}")
    lower = f.let(f"icmp slt {vector_type('i64', lanes)} {new[1]}, {old[1]}")
    tie = f.let(f"and {mask_ty} {equal}, {lower}")
    better = f.let(f"or {mask_ty} {better}, {tie}")
    return select_lanes(f, r, dtype, lanes, better, new, old)


def fold_pairs(items: Sequence[T], merge: Callable[[T, T], T]) -> T:
    """Merge neighbours until one item is left."""
    while len(items) > 1:
        left_over = items[len(items) // 2 * 2 :]
        merged = [merge(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
        items = [*merged, *left_over]
    return items[0]


def fold_into(
    emitter: FunctionEmitter, inner: RegisterAccumulator, outer: RegisterAccumulator
) -> None:
    """Combine an inner loop's accumulator into that of the loop around it."""
    for x, slot in zip(_combine_stages(emitter, inner), outer.slots, strict=True):
        _combine_into(emitter, inner, slot, x)


def fold_stage(emitter: FunctionEmitter, acc: RegisterAccumulator, stage: int) -> None:
    """Add a stage to the next one and reset it."""
    rows = (acc.slots, *acc.stages)
    for a, b in zip(rows[stage], rows[stage + 1], strict=True):
        _combine_into(emitter, acc, b, acc.load(emitter.f, a))
        acc.store(emitter.f, a, _start(acc))


def _combine_stages(emitter: FunctionEmitter, acc: RegisterAccumulator) -> list[Element]:
    """Return the slots with all stages added, the smallest sums first."""
    f = emitter.f
    parts = [acc.load(f, s) for s in acc.slots]
    for later in acc.stages:
        more = [acc.load(f, s) for s in later]
        pairs = zip(parts, more, strict=True)
        parts = [combine(f, acc.reduce, acc.dtype, acc.lanes, a, b) for a, b in pairs]
    return parts


def horizontal_reduce(emitter: FunctionEmitter, acc: RegisterAccumulator) -> Element:
    """Fold all lanes to the scalar result; of argmax and argmin, the last operand is the result."""
    f, r, lanes = emitter.f, acc.reduce, acc.lanes
    parts = _combine_stages(emitter, acc)
    whole = fold_pairs(parts, lambda a, b: combine(f, r, acc.dtype, lanes, a, b))
    while lanes > 1:  # combine halves: the error grows with the depth of the tree
        types = _element_types(r, acc.dtype, lanes)
        low, high = (
            tuple(_half_vector(f, x, ty, lanes, k) for x, ty in zip(whole, types, strict=True))
            for k in (0, 1)
        )
        lanes //= 2
        whole = combine(f, r, acc.dtype, lanes, low, high)
    return (_nan_if_recorded(emitter, acc, whole[0]),) if acc.nan_lanes else whole


def _nan_if_recorded(emitter: FunctionEmitter, acc: RegisterAccumulator, extremum: str) -> str:
    """Return nan if any lane has recorded one, else the extremum."""
    f, ty = emitter.f, REGISTER_TYPES[acc.dtype]
    lanes = f.let(f"load {acc.mask_type}, ptr {acc.nan_lanes}")
    some = f.any_lane(lanes, acc.lanes)
    nan = literal(float("nan"), acc.dtype, 1)
    return f.let(f"select i1 {some}, {ty} {nan}, {ty} {extremum}")


def _half_vector(f: FunctionBuilder, x: str, ty: str, lanes: int, side: int) -> str:
    """Return the lower or upper half of a vector; a scalar if one lane is left."""
    half = lanes // 2
    if half == 1:
        return f.let(f"extractelement {ty} {x}, i64 {side}")
    return f.shuffle(ty, x, "poison", range(side * half, side * half + half))
