"""Whole powers as products."""

from __future__ import annotations

from tofuse.ir.types import DType

LARGEST = 8  # whole power of floats that is made of products: n - 1 roundings, where a pow has one


def is_product(exponent: bool | int | float, dtype: DType) -> bool:
    """Whether x ** exponent is made of products, or 1 over such."""
    if not float(exponent).is_integer():
        return False
    return 2 <= abs(exponent) <= LARGEST if dtype.is_float else exponent >= 2


def products_of(n: int) -> tuple[tuple[int, int], ...]:
    """The products that make x ** n for n >= 2: each of two earlier ones, of which x is number 0.

    By squaring, from the highest bit of n on: two products for each bit at most.
    """
    steps: list[tuple[int, int]] = []
    for bit in bin(n)[3:]:
        steps.append((len(steps), len(steps)))
        if bit == "1":
            steps.append((len(steps), 0))
    return tuple(steps)
