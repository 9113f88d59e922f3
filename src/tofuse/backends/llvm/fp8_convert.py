"""Conversion between fp8 in memory and float32 in registers; see ops/fp8.py."""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import FunctionBuilder, literal, vector_type
from tofuse.ir.types import DType
from tofuse.ops.fp8 import F32_INFINITY_BITS, FORMATS, NAN_BYTE


def encode(f: FunctionBuilder, x: str, dtype: DType, lanes: int) -> str:
    """Return the byte, in an i32, to which a float32 rounds."""
    form, drop = FORMATS[dtype], 23 - FORMATS[dtype].fraction_bits
    int_ty, float_ty, mask_ty = (
        vector_type("i32", lanes),
        vector_type("float", lanes),
        vector_type("i1", lanes),
    )

    def number(value: int) -> str:
        return literal(value, DType.I32, lanes)

    raw = f.let(f"bitcast {float_ty} {x} to {int_ty}")
    size = f.let(f"and {int_ty} {raw}, {number(0x7FFFFFFF)}")
    sign = f.let(f"lshr {int_ty} {raw}, {number(24)}")
    sign = f.let(f"and {int_ty} {sign}, {number(0x80)}")
    # a normal result: add half of the last place, one less for ties, and rebias the exponent
    odd = f.let(f"lshr {int_ty} {size}, {number(drop)}")
    odd = f.let(f"and {int_ty} {odd}, {number(1)}")
    biased = f.let(f"add {int_ty} {size}, {odd}")
    shift = (1 << (drop - 1)) - 1 - ((form.min_normal_exponent - 1) << 23)
    biased = f.let(f"add {int_ty} {biased}, {number(shift)}")
    normal = f.let(f"lshr {int_ty} {biased}, {number(drop)}")
    # a subnormal result: add a number whose last place is that of the result
    anchor = (form.min_normal_exponent + drop) << 23
    unsigned = f.let(f"bitcast {int_ty} {size} to {float_ty}")
    shifted = f.let(f"bitcast {int_ty} {number(anchor)} to {float_ty}")
    summed = f.let(f"fadd {float_ty} {unsigned}, {shifted}")
    below = f.let(f"bitcast {float_ty} {summed} to {int_ty}")
    below = f.let(f"sub {int_ty} {below}, {number(anchor)}")
    is_small = f.let(f"icmp ult {int_ty} {size}, {number(form.min_normal_exponent << 23)}")
    is_large = f.let(f"icmp uge {int_ty} {size}, {number(form.overflow_start)}")
    is_nan = f.let(f"icmp ugt {int_ty} {size}, {number(F32_INFINITY_BITS)}")
    result = f.let(f"select {mask_ty} {is_small}, {int_ty} {below}, {int_ty} {normal}")
    result = f.let(
        f"select {mask_ty} {is_large}, {int_ty} {number(form.overflow_byte)}, {int_ty} {result}"
    )
    result = f.let(f"select {mask_ty} {is_nan}, {int_ty} {number(NAN_BYTE)}, {int_ty} {result}")
    return f.let(f"or {int_ty} {result}, {sign}")


def decode(f: FunctionBuilder, byte: str, dtype: DType, lanes: int) -> str:
    """Return the float32 value of a byte in an i32; computed through fp16, whose range is wider."""
    int_ty, float_ty = vector_type("i32", lanes), vector_type("float", lanes)
    short_ty, half_ty, mask_ty = (
        vector_type("i16", lanes),
        vector_type("half", lanes),
        vector_type("i1", lanes),
    )

    def number(value: int) -> str:
        return literal(value, DType.I32, lanes)

    upper = f.let(f"shl {int_ty} {byte}, {number(8)}")
    if dtype is DType.F8E4M3:
        sign = f.let(f"and {int_ty} {upper}, {number(0x8000)}")
        size = f.let(f"and {int_ty} {byte}, {number(0x7F)}")
        is_nan = f.let(f"icmp eq {int_ty} {size}, {number(NAN_BYTE)}")
        shifted = f.let(f"shl {int_ty} {size}, {number(7)}")
        shifted = f.let(f"select {mask_ty} {is_nan}, {int_ty} {number(0x7E00)}, {int_ty} {shifted}")
        upper = f.let(f"or {int_ty} {shifted}, {sign}")
    narrow = f.let(f"trunc {int_ty} {upper} to {short_ty}")
    half = f.let(f"bitcast {short_ty} {narrow} to {half_ty}")
    wide = f.let(f"fpext {half_ty} {half} to {float_ty}")
    if dtype is DType.F8E5M2:
        return wide
    # the exponent of the fp16 number is 8 too small
    return f.let(f"fmul {float_ty} {wide}, {literal(256.0, DType.F32, lanes)}")


def round_to_fp8(f: FunctionBuilder, x: str, dtype: DType, lanes: int) -> str:
    """Return a float32 after a round trip through fp8."""
    byte = encode(f, x, dtype, lanes)
    value = decode(f, byte, dtype, lanes)
    f.fp8_bytes[value, dtype] = byte
    return value


def widen_fp8(f: FunctionBuilder, raw: str, dtype: DType, lanes: int) -> str:
    """Convert bytes in memory to float32."""
    byte = f.let(f"zext {vector_type('i8', lanes)} {raw} to {vector_type('i32', lanes)}")
    value = decode(f, byte, dtype, lanes)
    f.fp8_bytes[value, dtype] = byte
    return value


def narrow_fp8(f: FunctionBuilder, x: str, dtype: DType, lanes: int) -> str:
    """Convert float32 to bytes in memory."""
    byte = f.fp8_bytes.get((x, dtype)) or encode(f, x, dtype, lanes)
    return f.let(f"trunc {vector_type('i32', lanes)} {byte} to {vector_type('i8', lanes)}")
