"""Check every op of a graph against the op table and the type rules."""

from __future__ import annotations

from tofuse.errors import VerifyError
from tofuse.ir.call_arguments import CallArguments
from tofuse.ir.graph import Graph, Op
from tofuse.ir.graph.verify import op_error, verify_graph
from tofuse.ir.types import TensorType
from tofuse.ops.result_types import infer_type
from tofuse.ops.table import OPS, Pattern


def check_graph(graph: Graph) -> None:
    """Raise VerifyError, with the op and its source line, unless a graph and its ops are valid."""
    verify_graph(graph)
    for op in graph.ops:
        verify_op(op)


def verify_op(op: Op) -> None:
    """Raise VerifyError unless an op is in the table and its result has the inferred type."""
    row = OPS.get(op.kind)
    if row is None:
        raise op_error(op, f"there is no op {op.kind!r}")
    if row.pattern is Pattern.OPAQUE:
        _verify_opaque(op)
        return
    if len(op.results) != 1:
        raise op_error(op, f"{op.kind} has one result, not {len(op.results)}")
    if op.kind == "slice":
        _verify_slice(op)
    try:
        inferred = infer_type(op.kind, op.operands, dict(op.attrs))
    except VerifyError as error:
        raise op_error(op, str(error)) from error
    except (KeyError, IndexError, ValueError, AssertionError) as error:
        raise op_error(op, f"{op.kind}: operands or attributes do not fit: {error!r}") from error
    result = op.result.type
    if not op.inputs or row.pattern is Pattern.RANDOM:  # the device is not inferred
        inferred = TensorType(inferred.shape, inferred.dtype, result.device)
    if inferred != result:
        raise op_error(op, f"the result is {result!r} but should be {inferred!r}")


def _verify_opaque(op: Op) -> None:
    attrs = dict(op.attrs)
    for name, kind in (("target", str), ("args", CallArguments)):
        if not isinstance(attrs.get(name), kind):
            raise op_error(op, f"opaque needs the text attribute {name!r}")
    if "picks" in attrs:
        picks = attrs["picks"]
        if not isinstance(picks, tuple) or len(picks) != len(op.results):
            raise op_error(op, f"picks {picks!r} do not fit {len(op.results)} results")
    elif len(op.results) > 1:
        raise op_error(op, "several results need the attribute 'picks'")
    elif not op.results and attrs.get("effect") is not True:
        raise op_error(op, "an op without a result needs effect=True")
    for r in op.results:
        if attrs.get("dtype", r.dtype) is not r.dtype or attrs.get("shape", r.shape) != r.shape:
            raise op_error(op, f"the result {r!r} does not match the attributes shape and dtype")


def _verify_slice(op: Op) -> None:
    """Check that every static index is in range."""
    if len(op.inputs) != 1:
        return
    start, step = op.dims("start"), op.ints("step")
    from_shape, to_shape = op.inputs[0].shape, op.result.shape
    if not len(start) == len(step) == len(to_shape) == len(from_shape):
        raise op_error(op, f"slice: start {start} and step {step} do not fit the ranks")
    for first, stride, extent, size in zip(start, step, from_shape, to_shape, strict=True):
        if stride == 0 or (isinstance(first, int) and first < 0):
            raise op_error(op, "slice: a step of 0, or a negative start")
        if not (isinstance(first, int) and isinstance(extent, int) and isinstance(size, int)):
            continue
        if size > 0:
            last = first + stride * (size - 1)
            if first >= extent or not 0 <= last < extent:
                raise op_error(op, f"slice: elements {first} to {last} of {extent}")
