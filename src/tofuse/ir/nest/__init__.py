"""Nest: a kernel's statements inside loops, with explicit accumulators and scratch rows."""

from tofuse.ir.nest.data import (
    Accumulator,
    For,
    Nest,
    Node,
    Phase,
    Reload,
    Scratch,
    StmtNode,
)

__all__ = [
    "Accumulator", "StmtNode", "For", "Nest", "Node", "Phase", "Reload", "Scratch",
]  # fmt: skip
