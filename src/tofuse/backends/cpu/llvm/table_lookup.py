"""Look-ups in a short table, such as the numbers that codes stand for: shuffles of registers."""

from __future__ import annotations

from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter
from tofuse.backends.cpu.llvm.ir_text import REGISTER_TYPES, splat, vector_type
from tofuse.backends.cpu.llvm.value_ranges import value_range
from tofuse.cost.thresholds import MAX_LOOKUP_TABLE_REGISTERS
from tofuse.ir.kernel import Gather
from tofuse.ir.types import DType

# Permutations of a register of floats by another, by lanes.
PERMUTATIONS = {16: "@llvm.x86.avx512.permvar.sf.512", 8: "@llvm.x86.avx2.permps"}


def is_table(emitter: FunctionEmitter, s: Gather, memory: DType) -> bool:
    """Whether a gather reads a table that registers hold, at indices that are in range."""
    lanes, extent = emitter.lanes, s.extent
    if lanes not in PERMUTATIONS or lanes > emitter.native_lanes or not isinstance(extent, int):
        return False
    known = value_range(emitter.nest.kernel, s.dynamic_index)
    in_range = known is not None and known[0] >= 0 and known[1] < extent
    is_float = REGISTER_TYPES[memory.opmath] == "float"
    is_row = s.stride == 1 and not s.index.axes and s.guard is None
    return in_range and is_float and is_row and extent <= MAX_LOOKUP_TABLE_REGISTERS * lanes


def look_up(emitter: FunctionEmitter, s: Gather, memory: DType) -> list[str]:
    """Return the elements of a table at the indices in each vector."""
    f, lanes = emitter.f, emitter.lanes
    index_ty, wide_ty = vector_type("i32", lanes), vector_type("i64", lanes)
    ty, mask_ty = vector_type("float", lanes), vector_type("i1", lanes)
    assert isinstance(s.extent, int)
    registers = [
        _load_register(emitter, s, memory, first, s.extent) for first in range(0, s.extent, lanes)
    ]
    found: list[str] = []
    for index in emitter.operands(s.dynamic_index, DType.I64):
        lane = f.let(f"trunc {wide_ty} {index} to {index_ty}")
        parts = [_permute(emitter, x, lane) for x in registers]
        result = parts[0]
        if len(parts) > 1:
            limit = splat(f, str(lanes), "i32", lanes)
            is_low = f.let(f"icmp ult {index_ty} {lane}, {limit}")
            result = f.let(f"select {mask_ty} {is_low}, {ty} {parts[0]}, {ty} {parts[1]}")
        found.append(result)
    return found


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
