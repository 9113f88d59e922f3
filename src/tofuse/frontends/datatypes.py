"""The element types that nvFuser's users name, and how they promote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from tofuse.capture.fx.dtypes import dtype_of
from tofuse.errors import DefinitionError
from tofuse.ir.types import DType


class DataType(Enum):
    """An element type of a FusionDefinition; Null stands for "as the operands say"."""

    Double = "Double"
    Float = "Float"
    Half = "Half"
    BFloat16 = "BFloat16"
    Int = "Int"  # 64 bits
    Int32 = "Int32"
    UInt64 = "UInt64"
    Index = "Index"
    Bool = "Bool"
    Float8_e4m3fn = "Float8_e4m3fn"
    Float8_e5m2 = "Float8_e5m2"
    Float8_e8m0fnu = "Float8_e8m0fnu"
    Float4_e2m1fn = "Float4_e2m1fn"
    ComplexFloat = "ComplexFloat"
    ComplexDouble = "ComplexDouble"
    Null = "Null"

    def __repr__(self) -> str:
        return f"DataType.{self.value}"

    @property
    def torch(self) -> torch.dtype:
        """PyTorch's name of it."""
        if self is DataType.Null:
            raise DefinitionError("DataType.Null is no element type")
        return TO_TORCH[self]

    @property
    def ir(self) -> DType:
        """The graph's name of it; OTHER for what only PyTorch's operators handle."""
        return dtype_of(self.torch)

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
        """Bool, integer, float, complex: 0 to 3."""
        if self is DataType.Bool:
            return 0
        return 1 if self.is_int else 3 if self.is_complex else 2


def datatype(dtype: DataType | torch.dtype) -> DataType:
    """A DataType from itself or from a torch dtype; DefinitionError where there is none."""
    if isinstance(dtype, DataType):
        return dtype
    found = FROM_TORCH.get(dtype)
    if found is None:
        raise DefinitionError(f"{dtype!r} is no DataType")
    return found


def number_type(value: bool | int | float | complex) -> DataType:
    """The type of a Python number."""
    if isinstance(value, bool):
        return DataType.Bool
    if isinstance(value, int):
        return DataType.Int
    return DataType.Double if isinstance(value, float) else DataType.ComplexDouble


@dataclass(frozen=True)
class Typed:
    """What promotion looks at: a type, and 2 for a tensor, 1 for a 0-d tensor, 0 for a scalar."""

    dtype: DataType
    weight: int


def promote(operands: Sequence[Typed], *, to_float: bool = False) -> DataType:
    """The type that an op computes and returns.

    As in torch: a 0-d tensor counts only if its category is above that of the tensors, a scalar
    only above both. Then, as in nvFuser, Half and BFloat16 (and the 8-bit floats) become Float,
    and with `to_float` integers and bools do too.
    """
    result = DataType.Bool
    top = -1
    for weight in (2, 1, 0):
        for operand in operands:
            if operand.weight != weight or operand.dtype.category <= top:
                continue
            same = [o.dtype for o in operands if o.weight == weight]
            joined = _join([d for d in same if d.category > top])
            result = _weaken(joined, result, weight, top)
            top = result.category
            break
    if to_float and not (result.is_float or result.is_complex):
        return DataType.Float
    if result in NARROW:
        return DataType.Float
    return result


def _weaken(joined: DataType, held: DataType, weight: int, top: int) -> DataType:
    """A scalar beside tensors brings its category, not its width."""
    if weight or top < 0:
        return joined
    if joined is DataType.ComplexDouble and held is not DataType.Double:
        return DataType.ComplexFloat
    return DataType.Float if joined is DataType.Double else joined


def _join(dtypes: Sequence[DataType]) -> DataType:
    joined = dtypes[0]
    for d in dtypes[1:]:
        if d is joined:
            continue
        if joined in NARROW and d in NARROW:
            joined = DataType.Float
        else:
            joined = datatype(torch.promote_types(joined.torch, d.torch))
    return joined


NARROW = frozenset(
    {
        DataType.Half,
        DataType.BFloat16,
        DataType.Float8_e4m3fn,
        DataType.Float8_e5m2,
        DataType.Float8_e8m0fnu,
        DataType.Float4_e2m1fn,
    }
)

TO_TORCH: dict[DataType, torch.dtype] = {
    DataType.Double: torch.float64,
    DataType.Float: torch.float32,
    DataType.Half: torch.float16,
    DataType.BFloat16: torch.bfloat16,
    DataType.Int: torch.int64,
    DataType.Int32: torch.int32,
    DataType.UInt64: torch.uint64,
    DataType.Index: torch.int64,
    DataType.Bool: torch.bool,
    DataType.Float8_e4m3fn: torch.float8_e4m3fn,
    DataType.Float8_e5m2: torch.float8_e5m2,
    DataType.Float8_e8m0fnu: torch.float8_e8m0fnu,
    DataType.Float4_e2m1fn: torch.float4_e2m1fn_x2,
    DataType.ComplexFloat: torch.complex64,
    DataType.ComplexDouble: torch.complex128,
}

FROM_TORCH = {t: d for d, t in TO_TORCH.items() if d is not DataType.Index}
