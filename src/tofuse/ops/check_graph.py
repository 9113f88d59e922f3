"""Check that a graph is in SSA form, and every op against the op table and the type rules."""

from __future__ import annotations

from collections.abc import Mapping

from tofuse.errors import VerifyError
from tofuse.ir.call_arguments import CallArguments
from tofuse.ir.dims import SymDim, symbols_of
from tofuse.ir.graph import Graph, Op, Value, show_op
from tofuse.ir.types import DType, TensorType
from tofuse.ops.result_types import infer_type
from tofuse.ops.table import OPS, Pattern


def check_graph(graph: Graph) -> None:
    """Raise VerifyError, with the op and its source line, unless a graph and its ops are valid."""
    verify_graph(graph)
    for op in graph.ops:
        _verify_op(op)


def verify_graph(graph: Graph) -> None:
    """Raise VerifyError unless every value has one definition before its uses and a legal name."""
    defined: dict[str, Value] = {}
    symbols: set[str] = set()
    for v in graph.inputs:
        _define(v, defined, symbols, "an input")
    for op in graph.ops:
        _verify_operands(op, defined, symbols)
        for r in op.results:
            _define(r, defined, symbols, f"'{show_op(op)}'")
    for out in graph.outputs:
        if out is not None and defined.get(out.name) is not out:
            raise VerifyError(f"output {out!r} is not defined in the graph")
    if clash := sorted(defined.keys() & symbols):
        raise VerifyError(f"{clash[0]} names both a value and a size")


def _op_error(op: Op, message: str) -> VerifyError:
    """Return an error that shows the op and its source line after the message."""
    return VerifyError(f"{message}, in '{show_op(op)}'")


def _verify_operands(op: Op, defined: Mapping[str, Value], symbols: set[str]) -> None:
    for x in op.operands:
        if isinstance(x, Value):
            if defined.get(x.name) is not x:
                raise _op_error(op, f"operand {x.name} is not defined before")
        elif isinstance(x.value, SymDim):
            symbols.update(symbols_of(x.value))
    for _, value in op.attrs:
        if isinstance(value, CallArguments):
            _verify_arguments(op, value)
            symbols.update(value.symbols)
    if len({name for name, _ in op.attrs}) != len(op.attrs):
        raise _op_error(op, "an attribute is repeated")


def _verify_arguments(op: Op, arguments: CallArguments) -> None:
    if arguments.tensor_names:
        raise _op_error(op, f"{arguments.tensor_names[0]} names no operand")
    for k in arguments.operand_indices:
        if k >= len(op.inputs):
            raise _op_error(op, f"${k} is not among the {len(op.inputs)} operands")


def _define(v: Value, defined: dict[str, Value], symbols: set[str], where: str) -> None:
    if defined.get(v.name) is v:
        raise VerifyError(f"{v.name} is defined twice, the second time by {where}")
    if v.name in defined:
        raise VerifyError(f"two values are named {v.name}, the second is {where}")
    if not v.name.isidentifier() or v.name in _RESERVED:
        raise VerifyError(f"{v.name!r} cannot name a value, in {where}")
    if v.strides is not None and len(v.strides) != len(v.shape):
        raise VerifyError(f"{v.name} has {len(v.strides)} strides for {v.shape}, in {where}")
    defined[v.name] = v
    for d in v.shape:
        if not isinstance(d, int):
            symbols.update(symbols_of(d))


def _verify_op(op: Op) -> None:
    """Raise VerifyError unless an op is in the table and its result has the inferred type."""
    row = OPS.get(op.kind)
    if row is None:
        raise _op_error(op, f"there is no op {op.kind!r}")
    if row.pattern is Pattern.OPAQUE:
        _verify_opaque(op)
        return
    if len(op.results) != 1:
        raise _op_error(op, f"{op.kind} has one result, not {len(op.results)}")
    if op.kind == "slice":
        _verify_slice(op)
    try:
        inferred = infer_type(op.kind, op.operands, dict(op.attrs))
    except VerifyError as error:
        raise _op_error(op, str(error)) from error
    except (KeyError, IndexError, ValueError, AssertionError) as error:
        raise _op_error(op, f"{op.kind}: operands or attributes do not fit: {error!r}") from error
    result = op.result.type
    if not op.inputs or row.pattern is Pattern.RANDOM:  # the device is not inferred
        inferred = TensorType(inferred.shape, inferred.dtype, result.device)
    if inferred != result:
        raise _op_error(op, f"the result is {result!r} but should be {inferred!r}")


def _verify_opaque(op: Op) -> None:
    attrs = dict(op.attrs)
    for name, kind in (("target", str), ("args", CallArguments)):
        if not isinstance(attrs.get(name), kind):
            raise _op_error(op, f"opaque needs the text attribute {name!r}")
    if "picks" in attrs:
        picks = attrs["picks"]
        if not isinstance(picks, tuple) or len(picks) != len(op.results):
            raise _op_error(op, f"picks {picks!r} do not fit {len(op.results)} results")
    elif len(op.results) > 1:
        raise _op_error(op, "several results need the attribute 'picks'")
    elif not op.results and attrs.get("effect") is not True:
        raise _op_error(op, "an op without a result needs effect=True")
    for r in op.results:
        if attrs.get("dtype", r.dtype) is not r.dtype or attrs.get("shape", r.shape) != r.shape:
            raise _op_error(op, f"the result {r!r} does not match the attributes shape and dtype")


def _verify_slice(op: Op) -> None:
    """Check that every static index is in range."""
    if len(op.inputs) != 1:
        return
    start, step = op.dims("start"), op.ints("step")
    from_shape, to_shape = op.inputs[0].shape, op.result.shape
    if not len(start) == len(step) == len(to_shape) == len(from_shape):
        raise _op_error(op, f"slice: start {start} and step {step} do not fit the ranks")
    for first, stride, extent, size in zip(start, step, from_shape, to_shape, strict=True):
        if stride == 0 or (isinstance(first, int) and first < 0):
            raise _op_error(op, "slice: a step of 0, or a negative start")
        if not (isinstance(first, int) and isinstance(extent, int) and isinstance(size, int)):
            continue
        if size > 0:
            last = first + stride * (size - 1)
            if first >= extent or not 0 <= last < extent:
                raise _op_error(op, f"slice: elements {first} to {last} of {extent}")


_RESERVED = frozenset({"True", "False", "None", "inf", "nan", *(d.value for d in DType)})
