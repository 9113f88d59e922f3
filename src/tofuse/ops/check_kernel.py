"""Check that a kernel is in SSA form over its axes, buffers and sizes, and its ops are right."""

from __future__ import annotations

from collections.abc import Iterable

from tofuse.errors import VerifyError
from tofuse.ir.dims import Dim, symbols_of
from tofuse.ir.kernel import (
    WRITES,
    Buffer,
    Compute,
    Gather,
    InRange,
    Kernel,
    Load,
    Next,
    Previous,
    Reduce,
    Scan,
    Scatter,
    Stmt,
    Store,
    Uniform,
    buffers_of,
    show_stmt,
)
from tofuse.ir.types import DType
from tofuse.ops.philox import HALF_WORDS
from tofuse.ops.table import OPS, PREDICATES, REDUCTION_COMBINES, Pattern

READ_ROLES: tuple[str, ...] = ("in", "host")
WRITE_ROLES: tuple[str, ...] = ("out", "nontemporal")


def check_kernel(kernel: Kernel) -> None:
    """Raise VerifyError, with the statement, unless a kernel and its ops are valid.

    Every name must be defined once, before its uses, with the right type.
    """
    _verify_header(kernel)
    buffers = {b.name: b for b in kernel.buffers}
    axes, symbols = {a.name for a in kernel.axes}, set(kernel.symbols)
    values: dict[str, DType] = {}
    for stmt in kernel.body:
        for name in stmt.uses:
            if name not in values:
                raise _stmt_error(stmt, f"{name} is not defined before")
        _verify_indices(stmt, axes, symbols)
        _verify_memory(stmt, buffers)
        _verify_types(stmt, values)
        if isinstance(stmt, Compute):
            _verify_compute(stmt, values)
        if isinstance(stmt, Reduce):
            _verify_reduce(stmt, axes, values)
        if isinstance(stmt, Scan):
            _verify_scan(stmt, axes, values)
        if isinstance(stmt, (Previous, Next)):
            _verify_recurrence(kernel, stmt, axes, values)
        if isinstance(stmt, Scatter):
            _verify_scatter(kernel, stmt)
        if isinstance(stmt, WRITES):
            continue
        if stmt.name in values or stmt.name in buffers or stmt.name in axes | symbols:
            raise _stmt_error(stmt, f"{stmt.name} is defined twice")
        values[stmt.name] = stmt.dtype


def _stmt_error(stmt: Stmt, message: str) -> VerifyError:
    """Return an error that shows the statement after the message."""
    return VerifyError(f"{message}, in '{show_stmt(stmt)}'")


def _verify_header(kernel: Kernel) -> None:
    names = [*(a.name for a in kernel.axes), *(b.name for b in kernel.buffers), *kernel.symbols]
    for k, name in enumerate(names):
        if name in names[:k]:
            raise VerifyError(f"kernel {kernel.name} has two things named {name}")
    for b in kernel.buffers:
        if b.role not in READ_ROLES + WRITE_ROLES:
            roles = ", ".join(READ_ROLES + WRITE_ROLES)
            raise VerifyError(f"buffer {b.name} has the role {b.role!r}, which is none of {roles}")
        if b.dtype is DType.OTHER:
            raise VerifyError(f"buffer {b.name} has an element type that no kernel handles")
    for a in kernel.axes:
        _verify_dims((a.extent,), set(kernel.symbols), f"axis {a.name}")
        if isinstance(a.extent, int) and a.extent < 0:
            raise VerifyError(f"axis {a.name} has the extent {a.extent}")


def _verify_dims(dims: Iterable[Dim], symbols: set[str], where: str) -> None:
    for d in dims:
        for s in symbols_of(d):
            if s not in symbols:
                raise VerifyError(f"{s} is not among the kernel's sizes, in {where}")


def _verify_indices(stmt: Stmt, axes: set[str], symbols: set[str]) -> None:
    for index in stmt.indices:
        for axis, c in index.terms:
            if axis not in axes:
                raise _stmt_error(stmt, f"{axis} is not an axis of the kernel")
            if c == 0:
                raise _stmt_error(stmt, f"the coefficient of {axis} is 0")
        if list(index.terms) != sorted(index.terms, key=lambda t: t[0]):
            raise _stmt_error(stmt, f"the terms of {index!r} are not in order")
    if isinstance(stmt, Uniform) and stmt.below is not None and not 0 < stmt.below < HALF_WORDS:
        raise _stmt_error(stmt, f"{stmt.below} is not between 0 and {HALF_WORDS}")
    _verify_dims(stmt.dims, symbols, f"'{show_stmt(stmt)}'")


def _verify_memory(stmt: Stmt, buffers: dict[str, Buffer]) -> None:
    roles = WRITE_ROLES if isinstance(stmt, WRITES) else READ_ROLES
    expected = DType.I64 if isinstance(stmt, Uniform) else stmt.dtype
    for name in buffers_of(stmt):
        if name not in buffers:
            raise _stmt_error(stmt, f"there is no buffer {name}")
        role, dtype = buffers[name].role, buffers[name].dtype
        if role not in roles:
            raise _stmt_error(stmt, f"{name} is {role}, not {' or '.join(roles)}")
        if expected is not (dtype if isinstance(stmt, WRITES) else dtype.opmath):
            raise _stmt_error(stmt, f"{name} holds {dtype.value}")


def _verify_types(stmt: Stmt, values: dict[str, DType]) -> None:
    """Check that no value has a reduced float type, guards are b1, indices i64, stores fit."""
    if not isinstance(stmt, WRITES) and (stmt.dtype.is_reduced_float or stmt.dtype is DType.OTHER):
        raise _stmt_error(stmt, f"no register holds {stmt.dtype.value}")
    match stmt:
        case Load() | Gather() | InRange():
            if stmt.guard is not None and values[stmt.guard] is not DType.BOOL:
                raise _stmt_error(stmt, f"the guard {stmt.guard} is not a boolean")
            if isinstance(stmt, Gather) and values[stmt.dynamic_index] is not DType.I64:
                raise _stmt_error(stmt, f"{stmt.dynamic_index} is not an i64")
        case Scatter():
            if values[stmt.dynamic_index] is not DType.I64:
                raise _stmt_error(stmt, f"{stmt.dynamic_index} is not an i64")
            if values[stmt.value] is not stmt.dtype.opmath:
                raise _stmt_error(stmt, f"{stmt.value} is {values[stmt.value].value}")
        case Store():
            if isinstance(stmt.value, str) and values[stmt.value] is not stmt.dtype.opmath:
                raise _stmt_error(stmt, f"{stmt.value} is {values[stmt.value].value}")


def _verify_compute(stmt: Compute, values: dict[str, DType]) -> None:
    if stmt.operand_dtype.is_reduced_float:
        raise _stmt_error(stmt, f"no register holds {stmt.operand_dtype.value}")
    if stmt.op in ROUNDINGS:
        arity, result, operand = 1, DType.F32, DType.F32
    else:
        row = OPS.get(stmt.op)
        if row is None or row.pattern is not Pattern.ELEMENTWISE:
            raise _stmt_error(stmt, f"{stmt.op} is not an elementwise op")
        arity, operand = row.arity, stmt.operand_dtype
        result = DType.BOOL if stmt.op in PREDICATES else operand
    if len(stmt.args) != arity:
        raise _stmt_error(stmt, f"{stmt.op} takes {arity} arguments, not {len(stmt.args)}")
    if stmt.op != "convert" and (stmt.dtype, stmt.operand_dtype) != (result, operand):
        raise _stmt_error(stmt, f"{stmt.op} of {operand.value} is {result.value}")
    for k, a in enumerate(stmt.args):
        expected = DType.BOOL if stmt.op == "where" and k == 0 else stmt.operand_dtype
        if isinstance(a, str) and values[a] is not expected:
            raise _stmt_error(stmt, f"{a} is {values[a].value}, not {expected.value}")


def _verify_reduce(stmt: Reduce, axes: set[str], values: dict[str, DType]) -> None:
    row = OPS.get(stmt.op)
    if row is None or row.pattern is not Pattern.REDUCE:
        raise _stmt_error(stmt, f"{stmt.op} is not a reduction")
    if not stmt.over or len(set(stmt.over)) != len(stmt.over):
        raise _stmt_error(stmt, "a reduction needs axes without repeats")
    for a in stmt.over:
        if a not in axes:
            raise _stmt_error(stmt, f"{a} is not an axis of the kernel")
    if stmt.op.startswith("arg") != (stmt.position is not None):
        raise _stmt_error(stmt, "argmax and argmin need a position, other reductions have none")
    if stmt.op in ("any", "all") and stmt.dtype is not DType.BOOL:
        raise _stmt_error(stmt, f"{stmt.op} must be b1")
    if stmt.position is None:
        if values[stmt.arg] is not stmt.dtype:
            raise _stmt_error(stmt, f"{stmt.arg} is {values[stmt.arg].value}")
    elif stmt.dtype is not DType.I64:
        raise _stmt_error(stmt, "a position must be i64")
    elif not set(stmt.position.axes) <= set(stmt.over):
        raise _stmt_error(stmt, "the position depends on axes that are not reduced")


def _verify_scan(stmt: Scan, axes: set[str], values: dict[str, DType]) -> None:
    row = OPS.get(stmt.op)
    if row is None or row.pattern is not Pattern.SCAN:
        raise _stmt_error(stmt, f"{stmt.op} is not a scan")
    if stmt.axis not in axes:
        raise _stmt_error(stmt, f"{stmt.axis} is not an axis of the kernel")
    if values[stmt.arg] is not stmt.dtype:
        raise _stmt_error(stmt, f"{stmt.arg} is {values[stmt.arg].value}")


def _verify_scatter(kernel: Kernel, stmt: Scatter) -> None:
    if stmt.op not in REDUCTION_COMBINES:
        raise _stmt_error(stmt, f"{stmt.op} combines no two values")
    if not set(stmt.over) <= kernel.extents.keys() - set(stmt.index.axes):
        raise _stmt_error(stmt, f"{stmt.over} are not other axes of the kernel")
    before = kernel.body[: kernel.body.index(stmt)]
    starts = [s for s in before if isinstance(s, Store) and s.buffer == stmt.buffer]
    if not starts or any(isinstance(s.value, str) for s in starts):
        raise _stmt_error(stmt, f"no number is stored in {stmt.buffer} before")


def _verify_recurrence(
    kernel: Kernel, stmt: Previous | Next, axes: set[str], values: dict[str, DType]
) -> None:
    handed = stmt.arg if isinstance(stmt, Next) else stmt.start
    if isinstance(handed, str) and values[handed] is not stmt.dtype:
        raise _stmt_error(stmt, f"{handed} is {values[handed].value}")
    if isinstance(stmt, Next):
        previous = kernel.definitions[stmt.previous]
        if not isinstance(previous, Previous) or previous.dtype is not stmt.dtype:
            raise _stmt_error(stmt, f"{stmt.previous} is not a previous value of this type")
        return
    if stmt.axis not in axes:
        raise _stmt_error(stmt, f"{stmt.axis} is not an axis of the kernel")
    steps = [s for s in kernel.body if isinstance(s, Next) and s.previous == stmt.name]
    if len(steps) != 1:
        raise _stmt_error(stmt, f"{len(steps)} statements hand over the value, not one")


ROUNDINGS = frozenset(
    {"round_bf16", "round_f16", "round_f8e4m3", "round_f8e5m2"}
)  # float32 to float32: values that half precision or fp8 can represent
