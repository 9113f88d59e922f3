"""Floats of eight bits: what PyTorch makes of a float32 that none of them is.

Ties go to even. Too large a number is infinite in e5m2; in e4m3fn, which has no infinity, it is
the largest number or none at all, as the version of PyTorch has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.types import DType
from tofuse.ops.reference import TOO_LARGE


@dataclass(frozen=True)
class Format:
    """How a float32 is rounded to eight bits."""

    fraction: int  # bits of the fraction
    smallest: int  # biased float32 exponent of the smallest normal number
    limit: int  # bits of the first float32 that is too large
    beyond: int  # the byte that this and all above become, infinity included


NAN = 0x7F  # the byte of a number that is none
INFINITE = 255 << 23  # float32's
FORMATS = {
    DType.F8E4M3: Format(3, 121, (135 << 23 | 0x680000) + 1, TOO_LARGE[DType.F8E4M3]),
    DType.F8E5M2: Format(2, 113, 143 << 23, TOO_LARGE[DType.F8E5M2]),
}
