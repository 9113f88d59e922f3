"""Powers with constant exponents: integer ones as products, by repeated squaring, and roots."""

from __future__ import annotations

from tofuse.ir.types import DType

ROOTS: dict[bool | int | float, str] = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
MAX_FLOAT_EXPONENT = 8  # x ** n as products has up to n - 1 roundings, pow has one


def is_repeated_product(exponent: bool | int | float, dtype: DType) -> bool:
    """Whether x ** exponent is computed as products, or as the reciprocal of products."""
    if not float(exponent).is_integer():
        return False
    return 2 <= abs(exponent) <= MAX_FLOAT_EXPONENT if dtype.is_float else exponent >= 2


def repeated_squaring(n: int) -> tuple[tuple[int, int], ...]:
    """Return the products that compute x ** n, n >= 2, as pairs of operand numbers.

    Operand 0 is x, operand k the k-th product. Squaring from the highest bit of n on needs at
    most two products per bit.
    """
    steps: list[tuple[int, int]] = []
    for bit in bin(n)[3:]:
        steps.append((len(steps), len(steps)))
        if bit == "1":
            steps.append((len(steps), 0))
    return tuple(steps)
