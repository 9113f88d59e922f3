"""Arithmetic on constants as PyTorch does it in each element type, or None where unsure."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Union

from tofuse.ir.elements import ROUND
from tofuse.ir.graph import Scalar
from tofuse.ir.types import DType

Number = Union[bool, int, float]  # noqa: UP007


def round_to(value: Number, dtype: DType) -> Number | None:
    """The value as an element of that type; integers wrap around, a float goes toward zero."""
    if dtype is DType.BOOL:
        return bool(value)
    if dtype.is_int:
        if isinstance(value, float):
            return _truncate(value, dtype)
        return _wrap(int(value), dtype)
    if isinstance(value, int) and abs(value) > 2**53:
        return None
    return ROUND[dtype](float(value)) if dtype in ROUND else None


def same(a: Number, b: Number) -> bool:
    """Whether two constants are the same to the bit; nan is nan."""
    return Scalar(a).key == Scalar(b).key


def as_element(value: Number, dtype: DType) -> Number | None:
    """What a constant operand next to a tensor of that type counts as.

    In full precision it is rounded. In half precision PyTorch computes with it unrounded, or not,
    depending on the op: only a number that needs no rounding is sure.
    """
    element = round_to(value, dtype)
    if element is None or dtype in (DType.F32, DType.F64):
        return element
    return element if same(float(element), float(value)) else None


def evaluate(kind: str, args: tuple[Number, ...], dtype: DType) -> Number | None:
    """The result of an elementwise op on elements of `dtype`; None if it is not known exactly."""
    if dtype.is_float:
        rule = _FLOAT.get(kind)
    elif dtype.is_int:
        rule = _INT.get(kind)
    else:
        rule = _BOOL.get(kind)
    result = None if rule is None else rule(*args)
    if result is None or isinstance(result, bool):
        return result
    return round_to(result, dtype)


def sum_of_equal(value: Number, count: int, dtype: DType) -> Number | None:
    """`value` added up `count` times, where no order of adding rounds."""
    if dtype.is_int:
        return round_to(value * count, dtype) if isinstance(value, int) else None
    exact = 2**53 if dtype is DType.F64 else 2**24
    if not math.isfinite(value) or value != int(value) or abs(value) * count > exact:
        return None
    if value == 0 and math.copysign(1, value) < 0:
        return None
    return round_to(float(value * count), dtype) if dtype.is_float else None


def _truncate(value: float, dtype: DType) -> int | None:
    if not math.isfinite(value):
        return None
    whole = int(value)
    return whole if _wrap(whole, dtype) == whole else None


def _wrap(value: int, dtype: DType) -> int:
    bits = 8 * dtype.itemsize
    low = 0 if dtype is DType.U8 else -(1 << (bits - 1))
    return (value - low) % (1 << bits) + low


def _divide(a: float, b: float) -> float | None:
    return a / b if b != 0 else None


def _sqrt(a: float) -> float | None:
    return math.sqrt(a) if a >= 0 else None


def _maximum(a: float, b: float) -> float | None:
    return None if math.isnan(a + b) or a == b == 0 else max(a, b)


def _minimum(a: float, b: float) -> float | None:
    return None if math.isnan(a + b) or a == b == 0 else min(a, b)


_COMPARE: dict[str, Callable[..., Number | None]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "logical_not": operator.not_,
}

_ARITHMETIC: dict[str, Callable[..., Number | None]] = {
    **_COMPARE,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "abs": operator.abs,
}

# A double holds enough digits that rounding its result again to float gives the float's own result:
# https://docs.oracle.com/cd/E19957-01/806-3568/ncg_goldberg.html, and Figueroa 1995.
_FLOAT: dict[str, Callable[..., Number | None]] = {
    **_ARITHMETIC,
    "div": _divide,
    "sqrt": _sqrt,
    "maximum": _maximum,
    "minimum": _minimum,
    "isnan": math.isnan,
    "isinf": math.isinf,
}

_INT: dict[str, Callable[..., Number | None]] = {**_ARITHMETIC, "maximum": max, "minimum": min}

_BOOL: dict[str, Callable[..., Number | None]] = {
    **_COMPARE,
    "logical_and": lambda a, b: a and b,
    "logical_or": lambda a, b: a or b,
    "logical_xor": operator.ne,
}

EVALUATED = frozenset(_FLOAT) | frozenset(_INT) | frozenset(_BOOL)
