"""Element types in a kernel: half-precision values are in float32 registers."""

from __future__ import annotations

from collections.abc import Callable

from tofuse.ir.graph import Op, Scalar, Value
from tofuse.ir.statement import Arg
from tofuse.ir.types import DType

Emit = Callable[[str, tuple[Arg, ...], DType, DType], Arg]


def operand_dtype(op: Op) -> DType:
    """Return the common dtype of an elementwise op's data operands."""
    data = op.operands[1:] if op.kind == "where" else op.operands
    for x in data:
        if isinstance(x, Value):
            return x.dtype
    return op.result.dtype


def emit_convert(emit: Emit, arg: Arg, source: DType, target: DType) -> Arg:
    """Convert a value to another dtype; round it if the target is half precision."""
    if isinstance(arg, Scalar) and source == target:
        return arg
    if source.opmath != target.opmath:
        op = "ne" if target is DType.BOOL else "convert"
        args = (arg, Scalar(0)) if target is DType.BOOL else (arg,)
        arg = emit(op, args, target.opmath, source.opmath)
    if target.is_reduced_float and source != target and not _holds_all(target, source):
        arg = emit_round(emit, arg, target)
    return arg


def _holds_all(target: DType, source: DType) -> bool:
    """Whether each value of one dtype is a value of a half-precision one."""
    return target in (DType.F16, DType.BF16) and source.fits_half


def emit_round(emit: Emit, arg: Arg, dtype: DType) -> Arg:
    """Round a float32 value to half precision; it stays in a float32 register."""
    return emit(f"round_{dtype.value}", (arg,), DType.F32, DType.F32)
