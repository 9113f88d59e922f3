"""Rounding of float32 to bfloat16."""

from __future__ import annotations

from tofuse.backends.llvm.vector_math.formula_builder import InlineBuilder, Value


def bf16_bits(b: InlineBuilder, x: Value) -> Value:
    """Return 32 bits whose upper half is `x` rounded to bfloat16: ties to even, nan stays nan."""
    bits = x.bits
    rounded = bits + (((bits >> 16) & 1) + 0x7FFF)
    return b.select(b.compare("uno", x, x), bits.const(0x7FC00000), rounded)
