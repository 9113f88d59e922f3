"""Powers with constant exponents: integer ones as products, by repeated squaring, and roots."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tofuse.ir.types import DType

T = TypeVar("T")

ROOTS: dict[bool | int | float, str] = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
MAX_FLOAT_EXPONENT = 8  # x ** n as products has up to n - 1 roundings, pow has one


def is_repeated_product(exponent: bool | int | float, dtype: DType) -> bool:
    """Whether x ** exponent is computed as products, or as the reciprocal of products."""
    if not float(exponent).is_integer():
        return False
    return 2 <= abs(exponent) <= MAX_FLOAT_EXPONENT if dtype.is_float else exponent >= 2


def repeated_product(x: T, n: int, multiply: Callable[[T, T], T]) -> T:
    """Return x ** n, n >= 1: squaring from the highest bit of n on, at most two products a bit."""
    power = x
    for bit in bin(n)[3:]:
        power = multiply(power, power)
        if bit == "1":
            power = multiply(power, x)
    return power
