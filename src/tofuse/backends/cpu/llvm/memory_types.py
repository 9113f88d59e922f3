"""Conversion between types in memory and in registers; see ops/fp8.py for fp8."""

from __future__ import annotations

from tofuse.backends.cpu.llvm.ir_text import MEMORY_TYPES, FunctionBuilder
from tofuse.backends.cpu.llvm.vector_math.formula_builder import FormulaBuilder, Value
from tofuse.ir.types import DType
from tofuse.ops.fp8 import F32_INFINITY_BITS, F32_NAN_BITS, FORMATS, NAN_BYTE


def to_register_type(f: FunctionBuilder, raw: str, dtype: DType, lanes: int) -> str:
    """Convert from the type in memory to the type in a register."""
    b = FormulaBuilder(f, lanes)
    x = b.value(raw, MEMORY_TYPES[dtype])
    if dtype is DType.BOOL:
        return b.compare("ne", x, 0).text
    if dtype is DType.F16:
        return b.cast("fpext", x, "float").text
    if dtype is DType.BF16:
        return _widen_and_record(b, x).text
    return _decode_and_record(b, b.cast("zext", x, "i32"), dtype).text if dtype.is_fp8 else raw


def to_memory_type(f: FunctionBuilder, value: str, dtype: DType, lanes: int) -> str:
    """Convert from the type in a register to the type in memory."""
    b, scalar = FormulaBuilder(f, lanes), MEMORY_TYPES[dtype]
    if dtype is DType.BOOL:
        return b.cast("zext", b.value(value, "i1"), scalar).text
    x = b.value(value, "float")
    if dtype is DType.F16:
        return b.cast("fptrunc", x, scalar).text
    known = f.narrow_bits.get((value, dtype))
    if dtype is DType.BF16:
        if known is None and f.native_bf16:
            return b.cast("bitcast", b.cast("fptrunc", x, "bfloat"), scalar).text
        return known or _bf16_bits(b, x).text
    if not dtype.is_fp8:
        return value
    byte = b.value(known, "i32") if known else _encode(b, x, dtype)
    return b.cast("trunc", byte, scalar).text


def round_to(b: FormulaBuilder, x: Value, dtype: DType) -> Value:
    """Return a float32 after a round trip through a narrower type."""
    if dtype is DType.F16:
        return b.cast("fpext", b.cast("fptrunc", x, "half"), "float")
    if dtype is DType.BF16:
        return _widen_and_record(b, _bf16_bits(b, x))
    return _decode_and_record(b, _encode(b, x, dtype), dtype)


def _bf16_bits(b: FormulaBuilder, x: Value) -> Value:
    """Return the bits of `x` rounded to bfloat16, as an i16: ties to even, nan stays nan."""
    bits = x.bits
    rounded = bits + (((bits >> 16) & 1) + 0x7FFF)
    rounded = b.select(b.compare("uno", x, x), bits.const(0x7FC00000), rounded)
    return b.cast("trunc", rounded >> 16, "i16")


def _widen_and_record(b: FormulaBuilder, bits: Value) -> Value:
    """Return the float32 value of a bfloat16, given as an i16."""
    value = b.as_float(b.cast("zext", bits, "i32") << 16)
    b.f.narrow_bits[value.text, DType.BF16] = bits.text
    return value


def _encode(b: FormulaBuilder, x: Value, dtype: DType) -> Value:
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


def _decode(b: FormulaBuilder, byte: Value, dtype: DType) -> Value:
    """Return the float32 value of a byte, which is given as an i32.

    It is computed through fp16, whose range is wider.
    """
    short = b.cast("trunc", byte, "i16")
    if dtype is DType.F8E5M2:
        return b.cast("fpext", b.cast("bitcast", short << 8, "half"), "float")
    # a sign extension and a shift move sign, exponent and fraction, and leave a copy of the sign in
    # the upper bit of fp16's exponent
    signed = b.cast("sext", b.cast("trunc", byte, "i8"), "i16")
    half = b.cast("bitcast", signed << 7 & ~0x4000, "half")
    wide = b.cast("fpext", half, "float") * 256.0  # the fp16 number's exponent is 8 too small
    is_nan = b.compare("eq", short & 0x7F, NAN_BYTE)
    return b.as_float(b.select(is_nan, wide.bits | F32_NAN_BITS, wide.bits))


def _decode_and_record(b: FormulaBuilder, byte: Value, dtype: DType) -> Value:
    value = _decode(b, byte, dtype)
    b.f.narrow_bits[value.text, dtype] = byte.text
    return value
