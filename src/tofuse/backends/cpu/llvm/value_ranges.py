"""The range of an integer value in a kernel: which indices cannot be out of range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from tofuse.ir.graph import Scalar
from tofuse.ir.kernel import Compute, Kernel, Load
from tofuse.ir.statement import Arg
from tofuse.ir.types import DType

Range = tuple[int, int]  # the least and the largest value

COPY_MARK = "."  # between the name of a value and what tells a copy of it (`unroll_and_jam.py`)


def value_range(kernel: Kernel, name: str) -> Range | None:
    """Return the range of a value of a kernel, or of a copy of it; None if it is not known."""
    return _value_ranges(kernel).get(name.partition(COPY_MARK)[0])


@lru_cache(maxsize=8)
def _value_ranges(kernel: Kernel) -> Mapping[str, Range]:
    found: dict[str, Range] = {}
    dtypes = {b.name: b.dtype for b in kernel.buffers}
    for s in kernel.body:
        known: Range | None = None
        if isinstance(s, Load):
            known = _LOADED.get(dtypes[s.buffer])
        elif isinstance(s, Compute) and s.op in _RULES and s.dtype in _LIMITS:
            operands = [_operand_range(a, found) for a in s.args[s.op == "where" :]]
            if all(r is not None for r in operands):
                known = _RULES[s.op](*(r for r in operands if r is not None))
            elif s.op == "bitwise_and":
                known = next((r for r in operands if r is not None and r[0] >= 0), None)
                known = None if known is None else (0, known[1])
        if isinstance(s, Load | Compute) and known is not None and _fits(known, s.dtype):
            found[s.name] = known
    return found


def _operand_range(arg: Arg, found: Mapping[str, Range]) -> Range | None:
    if isinstance(arg, Scalar):
        return (arg.value, arg.value) if isinstance(arg.value, int) else None
    return found.get(arg)


def _fits(known: Range, dtype: DType) -> bool:
    low, high = _LIMITS.get(dtype, (0, -1))
    return low <= known[0] and known[1] <= high


def _bitwise_and(x: Range, y: Range) -> Range | None:
    highs = [high for low, high in (x, y) if low >= 0]
    return (0, min(highs)) if highs else None


def _bitwise_or(x: Range, y: Range) -> Range | None:
    if min(x[0], y[0]) < 0:
        return None
    return max(x[0], y[0]), (1 << max(x[1], y[1]).bit_length()) - 1


def _shift_right(x: Range, by: Range) -> Range | None:
    return (x[0] >> by[0], x[1] >> by[0]) if by[0] == by[1] >= 0 else None


def _shift_left(x: Range, by: Range) -> Range | None:
    return (x[0] << by[0], x[1] << by[0]) if by[0] == by[1] and by[0] in range(64) else None


def _remainder(x: Range, by: Range) -> Range | None:
    return (0, by[0] - 1) if by[0] == by[1] > 0 else None


def _where(x: Range, y: Range) -> Range:
    """Return the range of one of two values, whatever the condition is."""
    return min(x[0], y[0]), max(x[1], y[1])


_LOADED: Mapping[DType, Range] = {
    DType.U8: (0, 255),
    DType.I8: (-128, 127),
    DType.I16: (-(1 << 15), (1 << 15) - 1),
}
_LIMITS: Mapping[DType, Range] = {
    **_LOADED,
    DType.I32: (-(1 << 31), (1 << 31) - 1),
    DType.I64: (-(1 << 63), (1 << 63) - 1),
}
_RULES: Mapping[str, Callable[..., Range | None]] = {
    "convert": lambda x: x,
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "bitwise_and": _bitwise_and,
    "bitwise_or": _bitwise_or,
    "shift_right": _shift_right,
    "shift_left": _shift_left,
    "remainder": _remainder,
    "where": _where,
}
