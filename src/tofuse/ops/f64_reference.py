"""Convert a graph to float64, as the reference for its results."""

from __future__ import annotations

from dataclasses import replace

from tofuse.ir.graph import Attr, Graph, Value, substitute_values
from tofuse.ir.types import DType


def to_f64(graph: Graph) -> tuple[Graph, dict[Value, Value]]:
    """Return the float64 graph, and its value for each value of `graph`."""
    wide = {v: _wide(v) for v in graph.values()}
    graph = substitute_values(graph, wide)
    attrs = (tuple((name, _wide_attr(value)) for name, value in op.attrs) for op in graph.ops)
    ops = tuple(replace(op, attrs=new) for op, new in zip(graph.ops, attrs, strict=True))
    return replace(graph, ops=ops), wide


def _wide(v: Value) -> Value:
    return replace(v, type=replace(v.type, dtype=DType.F64)) if v.dtype.is_float else replace(v)


def _wide_attr(value: Attr) -> Attr:
    return DType.F64 if isinstance(value, DType) and value.is_float else value
