"""Element types inside a kernel: halves live in float32 registers, rounded when it counts."""

from __future__ import annotations

from collections.abc import Callable

from tofuse.ir.graph import Op, Scalar, Value
from tofuse.ir.kernel import Arg
from tofuse.ir.types import DType

Emit = Callable[[str, tuple[Arg, ...], DType, DType], Arg]


def register(dtype: DType) -> DType:
    """The type a value has in a register."""
    return DType.F32 if dtype.is_narrow else dtype


def operand_type(op: Op) -> DType:
    """The common dtype of an elementwise op's data operands."""
    data = op.operands[1:] if op.kind == "where" else op.operands
    for x in data:
        if isinstance(x, Value):
            return x.dtype
    return op.result.dtype


def converted(emit: Emit, arg: Arg, source: DType, target: DType) -> Arg:
    """A value brought from one dtype to another, rounded where the target is a half."""
    if isinstance(arg, Scalar) and source == target:
        return arg
    if register(source) != register(target):
        op = "ne" if target is DType.BOOL else "convert"
        args = (arg, Scalar(0)) if target is DType.BOOL else (arg,)
        arg = emit(op, args, register(target), register(source))
    if target.is_narrow and source != target:
        arg = rounded(emit, arg, target)
    return arg


def rounded(emit: Emit, arg: Arg, dtype: DType) -> Arg:
    """A float32 value rounded to a half, still in a float32 register."""
    return emit(f"round_{dtype.value}", (arg,), DType.F32, DType.F32)
