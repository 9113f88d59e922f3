"""Evaluate constants as PyTorch does in each element type; None if the result is not certain."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Union

from tofuse.ir.elements import ROUND
from tofuse.ir.graph import Scalar
from tofuse.ir.types import DType
from tofuse.ops.table import COMPARISONS

Number = Union[bool, int, float]  # noqa: UP007


def round_to(value: Number, dtype: DType) -> Number | None:
    """Return the value as an element of `dtype`: integers wrap around, floats truncate to integers.

    None if PyTorch's result is not certain.
    """
    if dtype is DType.BOOL:
        return bool(value)
    if dtype.is_int:
        if isinstance(value, float):
            return _truncate(value, dtype)
        return _wrap(int(value), dtype)
    if isinstance(value, int) and abs(value) > 2**53:
        return None
    return ROUND[dtype](float(value)) if dtype in ROUND else None


def same_bits(a: Number, b: Number) -> bool:
    """Whether two constants have the same bits; every nan equals every nan."""
    return Scalar(a).key == Scalar(b).key


def as_operand(value: Number, dtype: DType) -> Number | None:
    """Return the value that a constant operand has beside a tensor of type `dtype`.

    In full precision PyTorch rounds the constant. In half precision that depends on the op, so the
    result is None unless the constant needs no rounding.
    """
    element = round_to(value, dtype)
    if element is None or dtype in (DType.F32, DType.F64):
        return element
    return element if same_bits(float(element), float(value)) else None


def evaluate_elementwise(kind: str, args: tuple[Number, ...], dtype: DType) -> Number | None:
    """Return the result of an elementwise op on elements of `dtype`; None if not known exactly."""
    rules = _FLOAT if dtype.is_float else _INT if dtype.is_int else _BOOL
    result = rules[kind](*args) if kind in rules else None
    if result is None or isinstance(result, bool):
        return result
    return round_to(result, dtype)


def sum_of_constant(value: Number, count: int, dtype: DType) -> Number | None:
    """Return the sum of `count` times `value`; None if some order of additions could round."""
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


def _extremum(pick: Callable[[float, float], float]) -> Callable[[float, float], float | None]:
    return lambda a, b: None if math.isnan(a + b) or a == b == 0 else pick(a, b)


_COMPARE: dict[str, Callable[..., Number | None]] = {
    **{name: getattr(operator, name) for name in COMPARISONS},
    "logical_not": operator.not_,
}

_ARITHMETIC: dict[str, Callable[..., Number | None]] = {
    **_COMPARE,
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "abs")},
}

# Double rounding is harmless: a double result rounded to float equals the result in float.
# https://docs.oracle.com/cd/E19957-01/806-3568/ncg_goldberg.html, and Figueroa 1995.
_FLOAT: dict[str, Callable[..., Number | None]] = {
    **_ARITHMETIC,
    "div": _divide,
    "sqrt": _sqrt,
    "maximum": _extremum(max),
    "minimum": _extremum(min),
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
