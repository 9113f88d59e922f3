"""Convert a graph to float64, as the reference for its results."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from tofuse.ir.graph import Graph, Value, substitute_values
from tofuse.ir.types import DType

T = TypeVar("T")


def to_f64(graph: Graph) -> tuple[Graph, dict[Value, Value]]:
    """Return the float64 graph, and its value for each value of `graph`."""
    wide = {v: replace(v, type=replace(v.type, dtype=_wide(v.dtype))) for v in graph.values()}
    graph = substitute_values(graph, wide)
    ops = (replace(op, attrs=tuple((k, _wide(x)) for k, x in op.attrs)) for op in graph.ops)
    return replace(graph, ops=tuple(ops)), wide


def _wide(x: T) -> T | DType:
    return DType.F64 if isinstance(x, DType) and x.is_float else x
