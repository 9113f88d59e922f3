"""Round Python floats to each element type as PyTorch does."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable

from tofuse.ir.graph import Operand, Scalar
from tofuse.ir.types import DType


def _round_f32(value: float) -> float:
    return ctypes.c_float(value).value


def _round_f16(value: float) -> float:
    try:
        return float(struct.unpack("<e", struct.pack("<e", _round_f32(value)))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _round_bf16(value: float) -> float:
    """Round to the upper 16 bits of a float32, ties to even."""
    value = _round_f32(value)
    if not math.isfinite(value):
        return value
    bits = int(struct.unpack("<I", struct.pack("<f", value))[0])
    bits += 0x7FFF + ((bits >> 16) & 1)
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])


ROUND: dict[DType, Callable[[float], float]] = {
    DType.F64: float,
    DType.F32: _round_f32,
    DType.F16: _round_f16,
    DType.BF16: _round_bf16,
}


def round_scalar(x: Operand, dtype: DType) -> Scalar:
    """Round a number as a tensor of this half-precision dtype would hold it."""
    assert isinstance(x, Scalar)
    if dtype in ROUND and dtype.is_reduced_float and isinstance(x.value, float):
        return Scalar(ROUND[dtype](x.value))
    return x
