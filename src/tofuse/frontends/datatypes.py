"""nvFuser's element types, and type promotion."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import reduce

import torch

from tofuse.errors import DefinitionError
from tofuse.ir.types import DType
from tofuse.ops.reference import from_torch_dtype


class DataType(Enum):
    """An element type of a FusionDefinition; Null means the type promoted from the operands.

    A call returns the type itself: a tensor's type is read as `t.dtype` or, as in nvFuser, as
    `t.dtype()`.
    """

    _value_: str
    _dtype: torch.dtype | None

    Double = "Double", torch.float64
    Float = "Float", torch.float32
    Half = "Half", torch.float16
    BFloat16 = "BFloat16", torch.bfloat16
    Int = "Int", torch.int64  # 64 bits
    Int32 = "Int32", torch.int32
    UInt64 = "UInt64", torch.uint64
    Index = "Index", torch.int64
    Bool = "Bool", torch.bool
    Float8_e4m3fn = "Float8_e4m3fn", torch.float8_e4m3fn
    Float8_e5m2 = "Float8_e5m2", torch.float8_e5m2
    Float8_e8m0fnu = "Float8_e8m0fnu", torch.float8_e8m0fnu
    Float4_e2m1fn = "Float4_e2m1fn", torch.float4_e2m1fn_x2  # two numbers in a byte
    Float4_e2m1fn_x2 = "Float4_e2m1fn_x2", torch.float4_e2m1fn_x2  # of inputs: sizes in bytes
    ComplexFloat = "ComplexFloat", torch.complex64
    ComplexDouble = "ComplexDouble", torch.complex128
    Null = "Null", None

    def __new__(cls, name: str, dtype: torch.dtype | None) -> DataType:
        made = object.__new__(cls)
        made._value_, made._dtype = name, dtype
        return made

    def __call__(self) -> DataType:
        return self

    def __repr__(self) -> str:
        return f"DataType.{self.value}"

    @property
    def torch(self) -> torch.dtype:
        """The torch dtype."""
        if self._dtype is None:
            raise DefinitionError("DataType.Null is not an element type")
        return self._dtype

    @property
    def ir(self) -> DType:
        """The IR's dtype; OTHER for types that only PyTorch operators handle."""
        return from_torch_dtype(self.torch)

    @property
    def is_complex(self) -> bool:
        return self in (DataType.ComplexFloat, DataType.ComplexDouble)

    @property
    def is_int(self) -> bool:
        return self in (DataType.Int, DataType.Int32, DataType.UInt64, DataType.Index)

    @property
    def is_float(self) -> bool:
        return not (self.is_complex or self.is_int or self in (DataType.Bool, DataType.Null))

    @property
    def category(self) -> int:
        """0 for bool, 1 for integers, 2 for floats, 3 for complex."""
        if self is DataType.Bool:
            return 0
        return 1 if self.is_int else 3 if self.is_complex else 2


def datatype(dtype: DataType | torch.dtype) -> DataType:
    """Convert a torch dtype to a DataType; DefinitionError if there is none."""
    if isinstance(dtype, DataType):
        return dtype
    converted = FROM_TORCH.get(dtype)
    if converted is None:
        raise DefinitionError(f"{dtype!r} has no DataType")
    return converted


def number_type(value: bool | int | float | complex) -> DataType:
    """Return the type of a Python number."""
    if isinstance(value, bool):
        return DataType.Bool
    if isinstance(value, int):
        return DataType.Int
    return DataType.Double if isinstance(value, float) else DataType.ComplexDouble


def promote(
    groups: Sequence[Sequence[DataType]], *, to_float: bool = False, keep_narrow: bool = False
) -> DataType:
    """Return the type that an op on tensors, 0-d tensors and scalars computes in and returns.

    As in torch, a 0-d tensor counts only if its category is higher than the tensors', and a scalar
    only if its category is higher than both. Then, as in nvFuser, Half, BFloat16 and the 8-bit
    floats become Float unless `keep_narrow`, and with `to_float` integers and bools do too.
    """
    result: DataType | None = None
    for operands in groups:
        higher = [d for d in operands if result is None or d.category > result.category]
        if higher:
            common = reduce(_common_type, higher)
            beside_tensors = operands is groups[2] and result is not None
            result = _scalar_type(common, result) if beside_tensors else common
    assert result is not None
    if to_float and not (result.is_float or result.is_complex):
        return DataType.Float
    return DataType.Float if result in NARROW and not keep_narrow else result


def _scalar_type(common: DataType, tensor_type: DataType | None) -> DataType:
    """Return the type that scalars contribute next to tensors: their category but not width."""
    if common is DataType.ComplexDouble and tensor_type is not DataType.Double:
        return DataType.ComplexFloat
    return DataType.Float if common is DataType.Double else common


def _common_type(a: DataType, b: DataType) -> DataType:
    if a is b:
        return a
    if a in NARROW and b in NARROW:
        return DataType.Float
    return datatype(torch.promote_types(a.torch, b.torch))


NARROW = {d for d in DataType if d.is_float and d not in (DataType.Float, DataType.Double)}

ALIASES = (DataType.Index, DataType.Float4_e2m1fn_x2, DataType.Null)

FROM_TORCH = {d.torch: d for d in DataType if d not in ALIASES}
