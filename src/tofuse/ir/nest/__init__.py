"""Nest: the statements of a kernel inside loops, with explicit accumulators and scratch rows."""

from tofuse.ir.nest.data import (
    Accumulate,
    Do,
    For,
    Nest,
    Node,
    Phase,
    Restore,
    Scratch,
)

__all__ = [
    "Accumulate", "Do", "For", "Nest", "Node", "Phase", "Restore", "Scratch",
]  # fmt: skip
