"""Convert a graph to float64, as the reference for its results."""

from __future__ import annotations

from dataclasses import replace

from tofuse.ir.graph import Attr, Graph, Op, Operand, Value, substitute_operands
from tofuse.ir.types import DType


def to_f64(graph: Graph) -> tuple[Graph, dict[Value, Value]]:
    """Return the float64 graph, and its value for each value of `graph`."""
    wide: dict[Value, Value] = {v: _wide(v) for v in graph.inputs}
    ops: list[Op] = []
    for op in graph.ops:
        wide |= {r: _wide(r) for r in op.results}
        moved: dict[Value, Operand] = {v: wide[v] for v in op.inputs}
        results = tuple(wide[r] for r in op.results)
        attrs = tuple((name, _wide_attr(value)) for name, value in op.attrs)
        operands = substitute_operands(op.operands, moved)
        ops.append(replace(op, operands=operands, results=results, attrs=attrs))
    inputs = tuple(wide[v] for v in graph.inputs)
    outputs = tuple(None if v is None else wide[v] for v in graph.outputs)
    return replace(graph, inputs=inputs, ops=tuple(ops), outputs=outputs), wide


def _wide(v: Value) -> Value:
    return replace(v, type=replace(v.type, dtype=DType.F64)) if v.dtype.is_float else replace(v)


def _wide_attr(value: Attr) -> Attr:
    return DType.F64 if isinstance(value, DType) and value.is_float else value
