"""LLVM IR of one kernel statement inside the loops."""

from __future__ import annotations

from tofuse.backends.cpu.llvm.elementwise import emit_elementwise
from tofuse.backends.cpu.llvm.function_emitter import EmittedValue, FunctionEmitter, LaneTable
from tofuse.backends.cpu.llvm.ir_text import REGISTER_TYPES, literal, splat, vector_type
from tofuse.backends.cpu.llvm.peel import is_nontemporal
from tofuse.backends.cpu.llvm.register_transpose import tile_element_pointer
from tofuse.backends.cpu.llvm.strided_access import (
    load_interleaved,
    load_strided,
    store_interleaved,
)
from tofuse.backends.cpu.llvm.table_lookup import (
    code_table,
    is_looked_up,
    is_table,
    look_up,
    table_codes,
    table_of,
    table_registers,
)
from tofuse.ir.interleave import is_vectorizable_stride
from tofuse.ir.kernel import Compute, Gather, InRange, Iota, Load, Scatter, Store
from tofuse.ir.nest import Reload
from tofuse.ir.types import DType


def emit_load(emitter: FunctionEmitter, s: Load, memory: DType) -> None:
    """Emit a load; `memory` is the buffer's dtype."""
    if _define_zero_if_dead(emitter, s):
        return
    axis, lanes = emitter.vector_axis, emitter.lanes
    if s in emitter.tile_arrays:
        register = memory.opmath
        slot = tile_element_pointer(emitter, s, register)
        emitter.define(s.name, [emitter.load(slot, register, lanes, None)], s.dtype)
        return
    if s in emitter.interleave_groups:
        if emitter.interleave_groups[s]:
            load_interleaved(emitter, emitter.interleave_groups[s], memory)
        return
    pointer = emitter.pointers[s.buffer]
    step = s.index.coefficient(axis) if axis is not None else 0
    vectors = []
    at = emitter.affine(s.index)
    for u in range(emitter.unroll):
        mask = emitter.mask(u, s.guard)
        if axis is None or step == 1:
            first = _add_offset(emitter, at, u * lanes)
            first = emitter.mapped_index(first, s.guard, mask)
            slot = emitter.element_pointer(pointer, memory, first)
            vectors.append(emitter.load(slot, memory, lanes, mask))
        elif step == 0:
            vectors.append(_load_broadcast(emitter, pointer, memory, at, mask))
        elif isinstance(step, int) and is_vectorizable_stride(step, lanes):
            first = _add_offset(emitter, at, u * lanes * step)
            first = emitter.mapped_index(first, s.guard, mask)
            vectors.append(load_strided(emitter, pointer, memory, first, step, mask))
        else:
            indices = emitter.lane_indices(s.index, u)
            vectors.append(emitter.gather(pointer, memory, indices, lanes, mask))
    emitter.define(s.name, vectors, s.dtype)


def _load_broadcast(
    emitter: FunctionEmitter, pointer: str, memory: DType, index: str, mask: str | None
) -> str:
    """Load one element into all lanes; under a mask that varies, only if some lane needs it."""
    f, lanes, dtype = emitter.f, emitter.lanes, memory.opmath
    slot, element_ty = emitter.element_pointer(pointer, memory, index), REGISTER_TYPES[dtype]
    if mask is None or lanes == 1:
        return splat(f, emitter.load(slot, memory, 1, mask), element_ty, lanes)
    mask_ty, ty = vector_type("i1", lanes), vector_type(element_ty, lanes)
    some = f.any_lane(mask, lanes)
    value = splat(f, emitter.load(slot, memory, 1, some), element_ty, lanes)
    return f.let(f"select {mask_ty} {mask}, {ty} {value}, {ty} {literal(0, dtype, lanes)}")


def _define_zero_if_dead(emitter: FunctionEmitter, s: Load | Gather) -> bool:
    """Define a load as zero if no lane passes its guard here; return whether that is so."""
    if s.guard is None or emitter.known_guards.get(s.guard, True):
        return False
    zero = literal(0, s.dtype.opmath, emitter.lanes)
    emitter.define(s.name, [zero] * emitter.unroll, s.dtype)
    return True


def emit_gather(emitter: FunctionEmitter, s: Gather, memory: DType) -> None:
    """Emit a gather; `memory` is the buffer's dtype.

    An index that is the same in all lanes selects a row, which is loaded as whole vectors.
    """
    if _define_zero_if_dead(emitter, s):
        return
    f, lanes, axis = emitter.f, emitter.lanes, emitter.vector_axis
    pointer, index = emitter.pointers[s.buffer], emitter.values[s.dynamic_index]
    is_row = index.lanes == 1 and axis is not None
    extent = emitter.size(s.extent)
    stride = emitter.size(s.stride)
    vectors = []
    if is_row and s.index.coefficient(axis or "") == 1:
        any_passes = _any_passes(emitter, s)
        row, valid = check_index(emitter, s, index.operands[0], extent, 1, any_passes)
        at = f.let(f"add i64 {emitter.affine(s.index)}, {f.let(f'mul i64 {row}, {stride}')}")
        for u in range(emitter.unroll):
            mask, all_valid = emitter.mask(u, s.guard), splat(f, valid, "i1", lanes)
            mask = all_valid if mask is None else f.intersect(mask, all_valid, lanes)
            slot = emitter.element_pointer(pointer, memory, _add_offset(emitter, at, u * lanes))
            vectors.append(emitter.load(slot, memory, lanes, mask))
        emitter.define(s.name, vectors, s.dtype)
        return
    if is_table(emitter, s, memory):
        registers, codes = table_registers(emitter, s, memory), table_codes(emitter, s)
        table = LaneTable(registers[0], codes) if len(registers) == 1 else None
        emitter.define(s.name, look_up(emitter, registers, codes), s.dtype, table)
        return
    int_ty = vector_type("i64", lanes)
    for u, by in enumerate(emitter.operands(s.dynamic_index, DType.I64)):
        by, valid = check_index(emitter, s, by, extent, lanes, emitter.mask(u, s.guard))
        step = f.let(f"mul {int_ty} {by}, {splat(f, stride, 'i64', lanes)}")
        at = f.let(f"add {int_ty} {emitter.lane_indices(s.index, u)}, {step}")
        if lanes == 1:
            slot = emitter.element_pointer(pointer, memory, at)
            vectors.append(emitter.load(slot, memory, 1, valid))
        else:
            vectors.append(emitter.gather(pointer, memory, at, lanes, valid))
    emitter.define(s.name, vectors, s.dtype)


def _any_passes(emitter: FunctionEmitter, s: Gather) -> str | None:
    """Return whether the guard passes in some lane of any vector; None if all lanes pass."""
    if s.guard is None or emitter.known_guards.get(s.guard):
        return None
    f, guard, lanes = emitter.f, emitter.values[s.guard], emitter.lanes
    if guard.lanes == 1:
        return guard.operands[0]
    masks = [emitter.mask(u, s.guard) for u in range(emitter.unroll)]
    total, *others = [f.any_lane(m, lanes) for m in masks if m]
    for other in others:
        total = f.let(f"or i1 {total}, {other}")
    return total


def check_index(
    emitter: FunctionEmitter,
    s: Gather | Scatter,
    index: str,
    extent: str,
    lanes: int,
    mask: str | None,
) -> tuple[str, str]:
    """Wrap the index if required; return it and the mask of valid lanes.

    Lanes out of range set the status.
    """
    f, int_ty, mask_ty = emitter.f, vector_type("i64", lanes), vector_type("i1", lanes)
    limit = splat(f, extent, "i64", lanes)
    if s.wrap:
        negative = f.let(f"icmp slt {int_ty} {index}, {literal(0, DType.I64, lanes)}")
        wrapped = f.let(f"add {int_ty} {index}, {limit}")
        index = f.let(f"select {mask_ty} {negative}, {int_ty} {wrapped}, {int_ty} {index}")
    valid = f.let(f"icmp ult {int_ty} {index}, {limit}")
    invalid = f.let(f"xor {mask_ty} {valid}, {literal(True, DType.BOOL, lanes)}")
    invalid, valid = f.intersect(invalid, mask, lanes), f.intersect(valid, mask, lanes)
    invalid = f.any_lane(invalid, lanes)
    old = f.let(f"load i1, ptr {emitter.status}")
    f.put(f"store i1 {f.let(f'or i1 {old}, {invalid}')}, ptr {emitter.status}")
    return index, valid


def emit_compute(emitter: FunctionEmitter, s: Compute) -> None:
    """Emit an elementwise op."""
    signature = s.operand_dtype, s.dtype, emitter.lanes
    dtypes = [s.operand_dtype] * len(s.args)
    if s.op == "where":
        dtypes[0] = DType.BOOL
    args = [emitter.operands(a, d) for a, d in zip(s.args, dtypes, strict=True)]
    is_uniform = all(isinstance(a, str) and emitter.values[a].lanes == 1 for a in s.args)
    if is_uniform and emitter.vector_axis is not None:  # the same value in every lane and vector
        args = [a[:1] * emitter.unroll for a in args]
    table = table_of(emitter, s, dtypes)
    if table is not None and is_looked_up(emitter, s):
        vectors = look_up(emitter, [table.register], table.codes)
    else:
        vectors = [
            emit_elementwise(emitter.f, s.op, [a[u] for a in args], *signature)
            for u in range(emitter.unroll)
        ]
    emitter.define(s.name, vectors, s.dtype, table or code_table(emitter, s, vectors))


def emit_iota(emitter: FunctionEmitter, s: Iota) -> None:
    """Emit the value of an affine expression."""
    vectors = []
    for u in range(emitter.unroll):
        at = [emitter.lane_indices(s.index, u)]
        vectors.append(
            emit_elementwise(emitter.f, "convert", at, DType.I64, s.dtype, emitter.lanes)
        )
    emitter.define(s.name, vectors, s.dtype)


def emit_in_range(emitter: FunctionEmitter, s: InRange) -> None:
    """Emit a range test, or a constant if the current segment decides it."""
    f, lanes = emitter.f, emitter.lanes
    int_ty, vectors = vector_type("i64", lanes), []
    if s.name in emitter.known_guards:
        constant = literal(emitter.known_guards[s.name], DType.BOOL, lanes)
        emitter.define(s.name, [constant] * emitter.unroll, s.dtype)
        return
    for u in range(emitter.unroll):
        at = emitter.lane_indices(s.index, u)
        above = f.let(f"icmp sge {int_ty} {at}, {splat(f, emitter.size(s.lo), 'i64', lanes)}")
        below = f.let(f"icmp slt {int_ty} {at}, {splat(f, emitter.size(s.hi), 'i64', lanes)}")
        inside = f.intersect(above, below, lanes)
        guard = None if s.guard is None else emitter.operands(s.guard, DType.BOOL)[u]
        vectors.append(f.intersect(inside, guard, lanes))
    emitter.define(s.name, vectors, DType.BOOL)


def emit_store(emitter: FunctionEmitter, s: Store, memory: DType) -> None:
    """Emit a store; `memory` is the buffer's dtype."""
    if s in emitter.interleave_groups:
        if emitter.interleave_groups[s]:
            store_interleaved(emitter, emitter.interleave_groups[s], memory)
        return
    pointer, register = emitter.pointers[s.buffer], memory.opmath
    axis, lanes = emitter.vector_axis, emitter.lanes
    step = s.index.coefficient(axis) if axis is not None else 0
    values = emitter.operands(s.value, register)
    if s in emitter.tile_arrays:
        slot = tile_element_pointer(emitter, s, register)
        emitter.store(slot, register, values[0], lanes, None)
        return
    at, nontemporal = emitter.affine(s.index), is_nontemporal(emitter, s)
    for u in range(emitter.unroll):
        mask = emitter.mask(u)
        if axis is None or step == 1:
            slot = emitter.element_pointer(pointer, memory, _add_offset(emitter, at, u * lanes))
            emitter.store(slot, memory, values[u], lanes, mask, nontemporal=nontemporal)
        else:
            indices = emitter.lane_indices(s.index, u)
            emitter.scatter(pointer, memory, indices, values[u], lanes, mask)


def emit_spill(emitter: FunctionEmitter, name: str) -> None:
    """Store the current vectors of a value in its scratch array."""
    scratch, value = emitter.nest.spills[name], emitter.values[name]
    if scratch.index.axes and emitter.vector_axis is None and value.lanes != emitter.lanes:
        return
    for u in range(emitter.unroll):
        slot = emitter.scratch_element_pointer(scratch, u)
        emitter.store(slot, scratch.dtype, value.operands[u], emitter.lanes, emitter.mask(u))


def emit_reload(emitter: FunctionEmitter, node: Reload) -> None:
    """Load the current vectors of a spilled value; a scalar if it has no vector axis."""
    scratch, lanes = node.scratch, emitter.lanes
    if emitter.vector_axis is not None and emitter.vector_axis not in scratch.index.axes:
        slot = emitter.scratch_element_pointer(scratch, 0)
        scalar = emitter.load(slot, scratch.dtype, 1, None)
        emitter.values[node.name] = EmittedValue((scalar,), scratch.dtype, 1)
        return
    vectors = []
    for u in range(emitter.unroll):
        slot = emitter.scratch_element_pointer(scratch, u)
        vectors.append(emitter.load(slot, scratch.dtype, lanes, emitter.mask(u)))
    emitter.define(node.name, vectors, scratch.dtype)


def _add_offset(emitter: FunctionEmitter, index: str, offset: int) -> str:
    return emitter.f.let(f"add i64 {index}, {offset}") if offset else index
