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
    substitute_values,
)

__all__ = [
    "Attr", "Graph", "Loc", "Names", "Op", "Operand", "Scalar", "Value", "device_of",
    "substitute_operands", "substitute_values",
]  # fmt: skip
