"""Look-ups in a short table, such as the numbers that codes stand for: shuffles of registers.

What a kernel computes from a code of few bits and from numbers that all lanes share, such as a
scale and a zero point, is computed for each possible code, in the lanes of one register. Each
vector of codes then selects lanes of it. The results have the same bits: products that a sum adds
are not looked up, because they are fused with the addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tofuse.backends.cpu.llvm.elementwise import emit_elementwise
from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter, LaneTable
from tofuse.backends.cpu.llvm.ir_text import REGISTER_TYPES, ramp, splat, vector_type
from tofuse.backends.cpu.llvm.value_ranges import COPY_MARK, value_range
from tofuse.cost.thresholds import MAX_LOOKUP_TABLE_REGISTERS
from tofuse.ir.graph import Scalar
from tofuse.ir.kernel import Compute, Gather, Kernel, Reduce, Store
from tofuse.ir.types import DType

INTEGER_DIVISIONS = ("div", "truncdiv", "floordiv", "fmod", "remainder")
# Permutations of a register of floats by another, by lanes.
PERMUTATIONS = {16: "@llvm.x86.avx512.permvar.sf.512", 8: "@llvm.x86.avx2.permps"}


def is_table(emitter: FunctionEmitter, s: Gather, memory: DType) -> bool:
    """Whether a gather reads a table that registers hold, at indices that are in range."""
    lanes, extent = emitter.lanes, s.extent
    if not _permutes(emitter) or not isinstance(extent, int):
        return False
    known = value_range(emitter.nest.kernel, s.dynamic_index)
    in_range = known is not None and known[0] >= 0 and known[1] < extent
    is_float = REGISTER_TYPES[memory.opmath] == "float"
    is_row = s.stride == 1 and not s.index.axes and s.guard is None
    return in_range and is_float and is_row and extent <= MAX_LOOKUP_TABLE_REGISTERS * lanes


def table_registers(emitter: FunctionEmitter, s: Gather, memory: DType) -> list[str]:
    """Load a table into registers."""
    assert isinstance(s.extent, int)
    starts = range(0, s.extent, emitter.lanes)
    return [_load_register(emitter, s, memory, first, s.extent) for first in starts]


def table_codes(emitter: FunctionEmitter, s: Gather) -> tuple[str, ...]:
    """Return the indices of a gather as i32 lanes."""
    wide_ty, ty = (vector_type(t, emitter.lanes) for t in ("i64", "i32"))
    indices = emitter.operands(s.dynamic_index, DType.I64)
    return tuple(emitter.f.let(f"trunc {wide_ty} {i} to {ty}") for i in indices)


def look_up(emitter: FunctionEmitter, registers: Sequence[str], codes: Sequence[str]) -> list[str]:
    """Return the elements of a table of floats in one or two registers, for vectors of codes.

    If there are two registers, the upper bits of the codes count.
    """
    f, lanes = emitter.f, emitter.lanes
    index_ty, ty, mask_ty = (vector_type(t, lanes) for t in ("i32", "float", "i1"))
    found: list[str] = []
    for code in codes:
        parts = [_permute(emitter, x, code) for x in registers]
        result = parts[0]
        if len(parts) > 1:
            limit = splat(f, str(lanes), "i32", lanes)
            is_low = f.let(f"icmp ult {index_ty} {code}, {limit}")
            result = f.let(f"select {mask_ty} {is_low}, {ty} {parts[0]}, {ty} {parts[1]}")
        found.append(result)
    return found


def code_table(emitter: FunctionEmitter, s: Compute, vectors: Sequence[str]) -> LaneTable | None:
    """Return the table of an integer whose values are all numbers of lanes, else None.

    `vectors` are its vectors. If it is a masked value, the codes are that value without the mask,
    as the permutation ignores the upper bits.
    """
    scalar, lanes = REGISTER_TYPES[s.dtype], emitter.lanes
    known = value_range(emitter.nest.kernel, s.name)
    if not _permutes(emitter) or known is None or known[0] < 0 or known[1] >= lanes:
        return None
    f, ty, index_ty = emitter.f, vector_type(scalar, lanes), vector_type("i32", lanes)
    if s.op == "bitwise_and":
        masked = [a for a in s.args if isinstance(a, str)]
        masks = [a.value for a in s.args if isinstance(a, Scalar)]
        if len(masked) == 1 and isinstance(masks[0], int) and masks[0] % lanes == lanes - 1:
            vectors = emitter.operands(masked[0], s.operand_dtype)
    cast = {"i8": "zext", "i16": "zext", "i32": "bitcast", "i64": "trunc"}[scalar]
    codes = tuple(f.let(f"{cast} {ty} {x} to {index_ty}") for x in vectors)
    return LaneTable(ramp(scalar, 0, lanes), codes)


def table_of(emitter: FunctionEmitter, s: Compute, dtypes: Sequence[DType]) -> LaneTable | None:
    """Return the table of an op, else None.

    Its operands are functions of one code, or numbers that all lanes share. The table also has a
    lane for each code that does not occur, so no integer is divided by a function of the code.
    """
    varying = [a for a in s.args if isinstance(a, str) and emitter.values[a].lanes > 1]
    tables = {a: table for a in varying if (table := emitter.values[a].table) is not None}
    if not _permutes(emitter) or not tables or len(tables) < len({*varying}):
        return None
    if s.op in INTEGER_DIVISIONS and not s.operand_dtype.is_float and s.args[1] in tables:
        return None
    codes, *others = (t.codes for t in tables.values())
    if any(c != codes for c in others):
        return None
    operands = [
        tables[a].register if isinstance(a, str) and a in tables else emitter.operands(a, d)[0]
        for a, d in zip(s.args, dtypes, strict=True)
    ]
    signature = s.operand_dtype, s.dtype, emitter.lanes
    return LaneTable(emit_elementwise(emitter.f, s.op, operands, *signature), codes)


def is_looked_up(emitter: FunctionEmitter, s: Compute) -> bool:
    """Whether an op that has a table is looked up in it, not computed for each element.

    A product that a sum adds is fused with the addition, and a rounded number that is stored need
    not be rounded again.
    """
    if not s.operand_dtype.is_float or REGISTER_TYPES[s.dtype] != "float":
        return False
    summed, stored = _uses(emitter.nest.kernel)
    name = s.name.partition(COPY_MARK)[0]
    return not (
        (s.op == "mul" and name in summed) or (s.op.startswith("round_") and name in stored)
    )


@lru_cache(maxsize=8)
def _uses(kernel: Kernel) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the values that sums add, and the names of stored values."""
    summed = frozenset(s.arg for s in kernel.body if isinstance(s, Reduce) and s.op == "sum")
    stored = frozenset(s.value for s in kernel.body if isinstance(s, Store))
    return summed, frozenset(v for v in stored if isinstance(v, str))


def _permutes(emitter: FunctionEmitter) -> bool:
    """Whether vectors have the lanes of a register that an instruction permutes."""
    return emitter.lanes in PERMUTATIONS and emitter.lanes <= emitter.native_lanes


def _load_register(
    emitter: FunctionEmitter, s: Gather, memory: DType, first: int, extent: int
) -> str:
    """Load a register of a table from its element `first` on; nothing after its end is read."""
    f, lanes, mask = emitter.f, emitter.lanes, None
    index = f.let(f"add i64 {emitter.affine(s.index)}, {first}")
    slot = emitter.element_pointer(emitter.pointers[s.buffer], memory, index)
    if extent - first < lanes:
        bits = ", ".join(f"i1 {str(k < extent - first).lower()}" for k in range(lanes))
        mask = f"<{bits}>"
    return emitter.load(slot, memory, lanes, mask)


def _permute(emitter: FunctionEmitter, register: str, lane: str) -> str:
    """Return the elements of a register at `lane`, whose upper bits do not count."""
    lanes = emitter.lanes
    ty, index_ty = vector_type("float", lanes), vector_type("i32", lanes)
    operands = [(ty, register), (index_ty, lane)]
    return emitter.f.call(PERMUTATIONS[lanes], ty, *operands)
