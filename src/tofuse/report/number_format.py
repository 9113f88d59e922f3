"""Format bytes, times, ratios and counts for readers, without exponents."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

BYTE_UNITS = ("B", "KB", "MB", "GB", "TB")
TIME_UNITS = ("µs", "ms", "s")


def show_bytes(n: float) -> str:
    return _scaled(n, BYTE_UNITS)


def show_us(us: float) -> str:
    """Format microseconds as µs, ms or s."""
    return _scaled(us, TIME_UNITS)


def show_ratio(ratio: float) -> str:
    """Format a ratio, such as `2.5x` or `2000x`."""
    return f"{_three_digits(ratio)}x"


def plural(n: int, word: str) -> str:
    """Return a count with its noun: `1 pair`, `2 pairs`, `2 launches`."""
    if n == 1:
        return f"1 {word}"
    return f"{n} {word}{'es' if word.endswith('ch') else 's'}"


def _scaled(x: float, units: Sequence[str]) -> str:
    k = 0
    while round(x) >= 1000 and k < len(units) - 1:
        x, k = x / 1000, k + 1
    return f"{_three_digits(x)} {units[k]}"


def _three_digits(x: float) -> str:
    """Return a number rounded to three significant digits, without an exponent."""
    return f"{Decimal(f'{x:.3g}'):f}"
