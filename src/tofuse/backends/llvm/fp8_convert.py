"""Conversion between fp8 in memory and float32 in registers; see ops/fp8.py."""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import FunctionBuilder
from tofuse.backends.llvm.vector_math.formula_builder import InlineBuilder, Value
from tofuse.ir.types import DType
from tofuse.ops.fp8 import F32_INFINITY_BITS, FORMATS, NAN_BYTE


def encode(b: InlineBuilder, x: Value, dtype: DType) -> Value:
    """Return the byte, in an i32, to which a float32 rounds."""
    form, drop = FORMATS[dtype], 23 - FORMATS[dtype].fraction_bits
    raw = x.bits
    size = raw & 0x7FFFFFFF
    sign = raw >> 24 & 0x80
    # a normal result: add half of the last place, one less for ties, and rebias the exponent
    odd = size >> drop & 1
    rebias = (1 << (drop - 1)) - 1 - ((form.min_normal_exponent - 1) << 23)
    normal = size + odd + rebias >> drop
    # a subnormal result: add a number whose last place is that of the result
    anchor = size.const((form.min_normal_exponent + drop) << 23)
    below = (b.as_float(size) + b.as_float(anchor)).bits - anchor
    is_small = b.compare("ult", size, form.min_normal_exponent << 23)
    is_large = b.compare("uge", size, form.overflow_start)
    is_nan = b.compare("ugt", size, F32_INFINITY_BITS)
    result = b.select(is_small, below, normal)
    result = b.select(is_large, form.overflow_byte, result)
    return b.select(is_nan, NAN_BYTE, result) | sign


def decode(b: InlineBuilder, byte: Value, dtype: DType) -> Value:
    """Return the float32 value of a byte in an i32; computed through fp16, whose range is wider."""
    upper = byte << 8
    if dtype is DType.F8E4M3:
        sign = upper & 0x8000
        size = byte & 0x7F
        is_nan = b.compare("eq", size, NAN_BYTE)
        upper = b.select(is_nan, 0x7E00, size << 7) | sign
    half = b.cast("bitcast", b.cast("trunc", upper, "i16"), "half")
    wide = b.cast("fpext", half, "float")
    # the exponent of the fp16 number is 8 too small
    return wide if dtype is DType.F8E5M2 else wide * 256.0


def round_to_fp8(f: FunctionBuilder, x: str, dtype: DType, lanes: int) -> str:
    """Return a float32 after a round trip through fp8."""
    b = InlineBuilder(f, lanes)
    byte = encode(b, b.value(x, "float"), dtype)
    return _decode_and_record(b, byte, dtype)


def widen_fp8(f: FunctionBuilder, raw: str, dtype: DType, lanes: int) -> str:
    """Convert bytes in memory to float32."""
    b = InlineBuilder(f, lanes)
    return _decode_and_record(b, b.cast("zext", b.value(raw, "i8"), "i32"), dtype)


def narrow_fp8(f: FunctionBuilder, x: str, dtype: DType, lanes: int) -> str:
    """Convert float32 to bytes in memory."""
    b, byte = InlineBuilder(f, lanes), f.fp8_bytes.get((x, dtype))
    known = b.value(byte, "i32") if byte else encode(b, b.value(x, "float"), dtype)
    return b.cast("trunc", known, "i8").text


def _decode_and_record(b: InlineBuilder, byte: Value, dtype: DType) -> str:
    value = decode(b, byte, dtype).text
    b.f.fp8_bytes[value, dtype] = byte.text
    return value
