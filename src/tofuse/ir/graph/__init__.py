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
    substitute,
)

__all__ = [
    "Attr", "Graph", "Loc", "Names", "Op", "Operand", "Scalar", "Value", "substitute",
]  # fmt: skip
