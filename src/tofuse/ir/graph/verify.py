"""Verify that a graph is in SSA form and topological order. `ops.check_graph` checks its ops."""

from __future__ import annotations

from tofuse.errors import VerifyError
from tofuse.ir.call_arguments import CallArguments
from tofuse.ir.dims import SymDim, symbols_of
from tofuse.ir.graph.data import Graph, Op, Value
from tofuse.ir.graph.print import show_op
from tofuse.ir.types import DType


def verify_graph(graph: Graph) -> None:
    """Raise VerifyError unless every value has one definition before its uses and a legal name."""
    defined: set[Value] = set()
    names: set[str] = set()
    symbols: set[str] = set()
    for v in graph.inputs:
        _define(v, defined, names, symbols, "an input")
    for op in graph.ops:
        _verify_operands(op, defined, symbols)
        for r in op.results:
            _define(r, defined, names, symbols, f"'{show_op(op)}'")
    for out in graph.outputs:
        if out is not None and out not in defined:
            raise VerifyError(f"output {out!r} is not defined in the graph")
    if clash := sorted(names & symbols):
        raise VerifyError(f"{clash[0]} names both a value and a size")


def op_error(op: Op, message: str) -> VerifyError:
    """Return an error that shows the op and its source line after the message."""
    return VerifyError(f"{message}, in '{show_op(op)}'")


def _verify_operands(op: Op, defined: set[Value], symbols: set[str]) -> None:
    for x in op.operands:
        if isinstance(x, Value):
            if x not in defined:
                raise op_error(op, f"operand {x.name} is not defined before")
        elif isinstance(x.value, SymDim):
            symbols.update(symbols_of(x.value))
    for _, value in op.attrs:
        if isinstance(value, CallArguments):
            _verify_arguments(op, value)
            symbols.update(value.symbols)
    if len({name for name, _ in op.attrs}) != len(op.attrs):
        raise op_error(op, "an attribute is repeated")


def _verify_arguments(op: Op, arguments: CallArguments) -> None:
    if arguments.tensor_names:
        raise op_error(op, f"{arguments.tensor_names[0]} names no operand")
    for k in arguments.operand_indices:
        if k >= len(op.inputs):
            raise op_error(op, f"${k} is not among the {len(op.inputs)} operands")


def _define(v: Value, defined: set[Value], names: set[str], symbols: set[str], where: str) -> None:
    if v in defined:
        raise VerifyError(f"{v.name} is defined twice, the second time by {where}")
    if v.name in names:
        raise VerifyError(f"two values are named {v.name}, the second is {where}")
    if not v.name.isidentifier() or v.name in _RESERVED:
        raise VerifyError(f"{v.name!r} cannot name a value, in {where}")
    if v.strides is not None and len(v.strides) != len(v.shape):
        raise VerifyError(f"{v.name} has {len(v.strides)} strides for {v.shape}, in {where}")
    defined.add(v)
    names.add(v.name)
    for d in v.shape:
        if not isinstance(d, int):
            symbols.update(symbols_of(d))


_RESERVED = frozenset({"True", "False", "None", "inf", "nan", *(d.value for d in DType)})
