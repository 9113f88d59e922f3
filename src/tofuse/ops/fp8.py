"""Constants of the conversion from float32 to fp8, as PyTorch rounds.

Ties go to even. Overflow is infinity in e5m2. In e4m3fn, which has no infinity, it is the largest
number or NaN, depending on the version of PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.types import DType
from tofuse.ops.reference import FP8_OVERFLOW


@dataclass(frozen=True)
class Fp8Format:
    """The parameters of rounding float32 to an fp8 type."""

    fraction_bits: int
    min_normal_exponent: int  # biased float32 exponent of the smallest normal number
    overflow_start: int  # bits of the smallest float32 that overflows
    overflow_byte: int  # the result of overflow and of infinity


NAN_BYTE = 0x7F
F32_INFINITY_BITS = 255 << 23
F32_NAN_BITS = 0x7FC00000  # quiet, without sign
FORMATS = {
    DType.F8E4M3: Fp8Format(3, 121, (135 << 23 | 0x680000) + 1, FP8_OVERFLOW[DType.F8E4M3]),
    DType.F8E5M2: Fp8Format(2, 113, 143 << 23, FP8_OVERFLOW[DType.F8E5M2]),
}
