"""Checks every op of a kernel against its row of the table."""

from __future__ import annotations

from tofuse.ir.kernel import Compute, Kernel, Reduce
from tofuse.ir.kernel.verify import stmt_error, verify_kernel
from tofuse.ir.types import DType
from tofuse.ops.table import COMPARISONS, OPS, Pattern


def verify(kernel: Kernel) -> None:
    """Raise VerifyError, naming the statement, unless the kernel and all its ops are sound."""
    verify_kernel(kernel)
    for stmt in kernel.body:
        match stmt:
            case Compute():
                _verify_compute(stmt)
            case Reduce():
                _verify_reduce(stmt)


def _verify_compute(stmt: Compute) -> None:
    if stmt.op in ROUNDINGS:
        arity, result, of = 1, DType.F32, DType.F32
    else:
        row = OPS.get(stmt.op)
        if row is None or row.pattern is not Pattern.ELEMENTWISE:
            raise stmt_error(stmt, f"{stmt.op} is no elementwise op")
        arity, of = row.arity, stmt.operand_dtype
        result = DType.BOOL if stmt.op in COMPARISONS else of
    if len(stmt.args) != arity:
        raise stmt_error(stmt, f"{stmt.op} takes {arity} arguments, not {len(stmt.args)}")
    if stmt.op != "convert" and (stmt.dtype, stmt.operand_dtype) != (result, of):
        raise stmt_error(stmt, f"{stmt.op} of {of.value} is {result.value}")


def _verify_reduce(stmt: Reduce) -> None:
    row = OPS.get(stmt.op)
    if row is None or row.pattern is not Pattern.REDUCE:
        raise stmt_error(stmt, f"{stmt.op} is no reduction")
    if stmt.op.startswith("arg") != (stmt.position is not None):
        raise stmt_error(stmt, "argmax and argmin have a position, and no other reduction")
    if stmt.position is not None and stmt.dtype is not DType.I64:
        raise stmt_error(stmt, "a position is an i64")
    if stmt.op in ("any", "all") and stmt.dtype is not DType.BOOL:
        raise stmt_error(stmt, f"{stmt.op} is b1")


ROUNDINGS = frozenset(
    {"round_bf16", "round_f16", "round_f8e4m3", "round_f8e5m2"}
)  # of float32 registers that stand for halves
