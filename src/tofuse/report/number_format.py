"""Format bytes, times and counts for readers."""

from __future__ import annotations

from collections.abc import Sequence

BYTE_UNITS = ("B", "KB", "MB", "GB", "TB")
TIME_UNITS = ("µs", "ms", "s")


def show_bytes(n: float) -> str:
    return _scaled(n, BYTE_UNITS)


def show_us(us: float) -> str:
    """Format microseconds as µs, ms or s."""
    return _scaled(us, TIME_UNITS)


def plural(n: int, word: str) -> str:
    """Return a count with its noun: `1 pair`, `2 pairs`, `2 launches`."""
    if n == 1:
        return f"1 {word}"
    return f"{n} {word}{'es' if word.endswith('ch') else 's'}"


def _scaled(x: float, units: Sequence[str]) -> str:
    k = 0
    while x >= 1000 and k < len(units) - 1:
        x, k = x / 1000, k + 1
    if x == int(x):
        return f"{int(x)} {units[k]}"
    return f"{x:.0f} {units[k]}" if x >= 100 else f"{x:.3g} {units[k]}"
