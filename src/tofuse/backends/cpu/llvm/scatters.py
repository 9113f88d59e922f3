"""LLVM IR of scatters: values combined, one after another, into elements that an index selects."""

from __future__ import annotations

from tofuse.backends.cpu.llvm.elementwise import emit_elementwise
from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter
from tofuse.backends.cpu.llvm.ir_text import REGISTER_TYPES, splat, vector_type
from tofuse.backends.cpu.llvm.statements import check_index
from tofuse.ir.kernel import Scatter
from tofuse.ir.types import DType
from tofuse.ops.table import REDUCTION_COMBINES


def emit_scatter(emitter: FunctionEmitter, s: Scatter, memory: DType) -> None:
    """Emit a scatter; `memory` is the buffer's dtype.

    An index that is the same in all lanes selects a row, which is combined as whole vectors.
    Otherwise lanes may select the same element, so they are combined one after another.
    """
    f, lanes, axis = emitter.f, emitter.lanes, emitter.vector_axis
    values, index = emitter.operands(s.value, memory.opmath), emitter.values[s.dynamic_index]
    extent, stride = emitter.size(s.extent), emitter.size(s.stride)
    if axis is not None and index.lanes == 1 and s.index.coefficient(axis) == 1:
        row, valid = check_index(emitter, s, index.operands[0], extent, 1, None)
        with f.if_then(valid):
            at = f.let(f"add i64 {emitter.affine(s.index)}, {f.let(f'mul i64 {row}, {stride}')}")
            for u, value in enumerate(values):
                first = f.let(f"add i64 {at}, {u * lanes}") if u else at
                _combine(emitter, s, memory, first, value, lanes, emitter.mask(u))
        return
    ints, mask_ty = vector_type("i64", lanes), vector_type("i1", lanes)
    value_ty = vector_type(REGISTER_TYPES[memory.opmath], lanes)
    selected = emitter.operands(s.dynamic_index, DType.I64)
    for u, (by, value) in enumerate(zip(selected, values, strict=True)):
        by, valid = check_index(emitter, s, by, extent, lanes, emitter.mask(u))
        step = f.let(f"mul {ints} {by}, {splat(f, stride, 'i64', lanes)}")
        at = f.let(f"add {ints} {emitter.lane_indices(s.index, u)}, {step}")
        for k in range(lanes):
            is_valid, element, x = valid, at, value
            if lanes > 1:
                is_valid = f.let(f"extractelement {mask_ty} {valid}, i64 {k}")
                element = f.let(f"extractelement {ints} {at}, i64 {k}")
                x = f.let(f"extractelement {value_ty} {value}, i64 {k}")
            with f.if_then(is_valid):
                _combine(emitter, s, memory, element, x, 1, None)


def _combine(
    emitter: FunctionEmitter,
    s: Scatter,
    memory: DType,
    at: str,
    value: str,
    lanes: int,
    mask: str | None,
) -> None:
    """Combine contiguous elements from index `at` on with the lanes of a value."""
    slot = emitter.element_pointer(emitter.pointers[s.buffer], memory, at)
    before, dtype = emitter.load(slot, memory, lanes, mask), memory.opmath
    combine = REDUCTION_COMBINES[s.op]
    combined = emit_elementwise(emitter.f, combine, (before, value), dtype, dtype, lanes)
    emitter.store(slot, memory, combined, lanes, mask)
