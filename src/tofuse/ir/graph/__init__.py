"""Graph: a straight-line, functional program over tensors, in SSA form and topological order."""

from tofuse.ir.graph.data import (
    Attr,
    Graph,
    Loc,
    Names,
    Op,
    Operand,
    Scalar,
    Value,
    device_of,
    substitute_operands,
)

__all__ = [
    "device_of",
    "Attr", "Graph", "Loc", "Names", "Op", "Operand", "Scalar", "Value", "substitute_operands",
]  # fmt: skip
