"""Rounding of float32 to bfloat16."""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import FunctionBuilder, literal, vector_type
from tofuse.ir.types import DType


def bf16_bits(f: FunctionBuilder, x: str, lanes: int) -> str:
    """Return 32 bits whose upper half is `x` rounded to bfloat16: ties to even, nan stays nan."""
    int_ty, float_ty = vector_type("i32", lanes), vector_type("float", lanes)
    bits = f.let(f"bitcast {float_ty} {x} to {int_ty}")
    shifted = f.let(f"lshr {int_ty} {bits}, {literal(16, DType.I32, lanes)}")
    odd = f.let(f"and {int_ty} {shifted}, {literal(1, DType.I32, lanes)}")
    bias = f.let(f"add {int_ty} {odd}, {literal(0x7FFF, DType.I32, lanes)}")
    rounded = f.let(f"add {int_ty} {bits}, {bias}")
    nan = f.let(f"fcmp uno {float_ty} {x}, {x}")
    mask_ty = vector_type("i1", lanes)
    quiet = literal(0x7FC00000, DType.I32, lanes)
    return f.let(f"select {mask_ty} {nan}, {int_ty} {quiet}, {int_ty} {rounded}")
