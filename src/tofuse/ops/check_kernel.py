"""Check every op of a kernel against the op table."""

from __future__ import annotations

from tofuse.ir.kernel import Compute, Kernel, Reduce
from tofuse.ir.kernel.verify import stmt_error, verify_kernel
from tofuse.ir.types import DType
from tofuse.ops.table import OPS, PREDICATES, Pattern


def check_kernel(kernel: Kernel) -> None:
    """Raise VerifyError, with the statement, unless a kernel and its ops are valid."""
    verify_kernel(kernel)
    for stmt in kernel.body:
        match stmt:
            case Compute():
                _verify_compute(stmt)
            case Reduce():
                _verify_reduce(stmt)


def _verify_compute(stmt: Compute) -> None:
    if stmt.op in ROUNDINGS:
        arity, result, operand = 1, DType.F32, DType.F32
    else:
        row = OPS.get(stmt.op)
        if row is None or row.pattern is not Pattern.ELEMENTWISE:
            raise stmt_error(stmt, f"{stmt.op} is not an elementwise op")
        arity, operand = row.arity, stmt.operand_dtype
        result = DType.BOOL if stmt.op in PREDICATES else operand
    if len(stmt.args) != arity:
        raise stmt_error(stmt, f"{stmt.op} takes {arity} arguments, not {len(stmt.args)}")
    if stmt.op != "convert" and (stmt.dtype, stmt.operand_dtype) != (result, operand):
        raise stmt_error(stmt, f"{stmt.op} of {operand.value} is {result.value}")


def _verify_reduce(stmt: Reduce) -> None:
    row = OPS.get(stmt.op)
    if row is None or row.pattern is not Pattern.REDUCE:
        raise stmt_error(stmt, f"{stmt.op} is not a reduction")
    if stmt.op.startswith("arg") != (stmt.position is not None):
        raise stmt_error(stmt, "argmax and argmin need a position, other reductions have none")
    if stmt.position is not None and stmt.dtype is not DType.I64:
        raise stmt_error(stmt, "a position must be i64")
    if stmt.op in ("any", "all") and stmt.dtype is not DType.BOOL:
        raise stmt_error(stmt, f"{stmt.op} must be b1")


ROUNDINGS = frozenset(
    {"round_bf16", "round_f16", "round_f8e4m3", "round_f8e5m2"}
)  # float32 to float32: values that half precision or fp8 can represent
