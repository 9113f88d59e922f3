"""Checks at run time of shapes and numbers that a program was compiled for."""

from __future__ import annotations

from collections.abc import Sequence


def check_shape(target: str, shape: Sequence[int], expected: Sequence[int]) -> None:
    """Raise RuntimeError if an operator returned a tensor of another shape than was traced."""
    if shape != expected:
        raise RuntimeError(
            f"{target} returned a tensor of shape {list(shape)}, but the program was compiled "
            f"for {list(expected)}: a check of a size that depends on data does not hold, or a "
            "custom operator's fake implementation is wrong"
        )


def check_number(target: str, number: float, expected: float) -> None:
    """Raise RuntimeError if an operator returned another number than was traced."""
    if number != expected and (number == number or expected == expected):
        raise RuntimeError(
            f"{target} returned {number}, but the program was compiled for {expected}: a check of "
            "a number that depends on data does not hold"
        )
