"""Print a graph in the text form that `ir.graph.parse` accepts."""

from __future__ import annotations

from tofuse.ir.call_arguments import CallArguments, show_arguments
from tofuse.ir.dims import show_strides
from tofuse.ir.graph.data import Attr, Graph, Op, Operand, Scalar, Value
from tofuse.ir.types import DType, show_type


def show_graph(graph: Graph) -> str:
    """Return the text of a graph: its inputs, one op per line, its outputs."""
    inputs = ", ".join(f"{v.name}: {show_value_type(v)}" for v in graph.inputs)
    outputs = ", ".join("None" if v is None else v.name for v in graph.outputs)
    lines = [f"{graph.name}({inputs}) {{"]
    lines += [f"  {show_op(op)}" for op in graph.ops]
    lines += [f"  return {outputs}".rstrip(), "}"]
    return "\n".join(lines)


def show_op(op: Op) -> str:
    """Return one line, such as `v1 = sum(v0, dims=(1,), dtype=f32) : f32[4]  # at model.py:12`."""
    args = [show_operand(x) for x in op.operands]
    args += [f"{name}={show_attr(value)}" for name, value in op.attrs]
    text = f"{op.kind}({', '.join(args)})"
    if op.results:
        left = ", ".join(r.name for r in op.results)
        text = f"{left} = {text} : {', '.join(map(show_value_type, op.results))}"
    if op.loc is None:
        return text
    hint = f" ({op.loc.fusion_hint})" if op.loc.fusion_hint else ""
    return f"{text}  # at {op.loc.file}:{op.loc.line}{hint}"


def show_operand(x: Operand) -> str:
    """Return a value's name, or the text of a constant."""
    return show_attr(x.value) if isinstance(x, Scalar) else x.name


def show_value_type(value: Value) -> str:
    """Return `f32[4,s0]`, or `f32[4,s0]{1,4}` for a value that carries strides."""
    return show_type(value.type) + show_strides(value.strides)


def show_attr(value: Attr) -> str:
    """Return Python's text of an attribute, with dtypes and sizes printed by name."""
    if isinstance(value, DType):
        return value.value
    if isinstance(value, CallArguments):
        return repr(show_arguments(value))
    if isinstance(value, tuple):
        return f"({', '.join(map(show_attr, value))}{',' if len(value) == 1 else ''})"
    return repr(value)
