"""Element types and tensor types. Strides and memory are not part of a type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from tofuse.ir.dims import Dim, product, show_dims


class DType(Enum):
    """An element type. The enum value is its name in printed IR."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F8E4M3 = "f8e4m3"  # float8_e4m3fn
    F8E5M2 = "f8e5m2"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "b1"
    OTHER = "opaque"  # complex, quantized, ...: only PyTorch's operators support these

    @property
    def is_float(self) -> bool:
        return self in (DType.F64, DType.F32) or self.is_reduced_float

    @property
    def fits_half(self) -> bool:
        """Whether float16 and bfloat16 hold each value of this dtype of one byte."""
        return self in (DType.BOOL, DType.I8, DType.U8, DType.F8E4M3, DType.F8E5M2)

    @property
    def is_reduced_float(self) -> bool:
        """Half precision and fp8: computed in float32 (c10::isReducedFloatingType)."""
        return self in (DType.F16, DType.BF16) or self.is_fp8

    @property
    def opmath(self) -> DType:
        """The type that ATen and kernels compute in: float32 for half precision and fp8."""
        return DType.F32 if self.is_reduced_float else self

    @property
    def is_fp8(self) -> bool:
        """8-bit floats, which are a storage format only."""
        return self in (DType.F8E4M3, DType.F8E5M2)

    @property
    def is_int(self) -> bool:
        return self in (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]


HOST = "cpu"  # the device whose memory is the host's


def is_host(device: str) -> bool:
    """Return whether a device's memory is that of the host."""
    return device == HOST


@dataclass(frozen=True)
class TensorType:
    """Shape, element type and device of a value."""

    shape: tuple[Dim, ...]
    dtype: DType
    device: str = HOST

    @property
    def on_host(self) -> bool:
        """Whether a value is in the memory of the host."""
        return is_host(self.device)

    @cached_property
    def numel(self) -> Dim:
        return product(self.shape)

    @cached_property
    def nbytes(self) -> Dim:
        return product((self.numel, self.dtype.itemsize))

    def __repr__(self) -> str:
        """Return `f32[4,s0]`, or `f32[4]@cuda:0` for a device other than the CPU."""
        at = "" if self.on_host else f"@{self.device}"
        return f"{self.dtype.value}[{show_dims(self.shape)}]{at}"


_ITEMSIZE = {
    **dict.fromkeys(DType, 1),
    **dict.fromkeys((DType.F16, DType.BF16, DType.I16), 2),
    **dict.fromkeys((DType.F32, DType.I32), 4),
    **dict.fromkeys((DType.F64, DType.I64, DType.OTHER), 8),
}
