"""Type inference: the type of an op's result from its operands and attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tofuse.errors import VerifyError
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Attr, Op, Operand, Scalar, Value
from tofuse.ir.recurrence import recurrence_of
from tofuse.ir.types import HOST, DType, TensorType
from tofuse.ops.philox import HALF_WORDS
from tofuse.ops.table import OPS, PREDICATES, REDUCTION_COMBINES, Pattern


def infer_type(kind: str, operands: tuple[Operand, ...], attrs: dict[str, Attr]) -> TensorType:
    """Return the result's type. Raises VerifyError if operands or attributes are invalid.

    `slice`, `uniform`, `bernoulli`, `full`, `iota` and `opaque` carry their result's shape and
    dtype as the attributes `shape` and `dtype`; `reshape`, `broadcast` and
    `scatter_reduce` carry `shape`;
    `convert`, `contract` and the reductions carry `dtype`.
    """
    op = Op(kind, operands, (), tuple(attrs.items()))
    row = OPS[kind]
    if row.arity >= 0 and len(operands) != row.arity:
        raise VerifyError(f"{kind} takes {row.arity} operands, not {len(operands)}")
    return _RULES[row.pattern](op)


def make_op(
    kind: str,
    operands: tuple[Operand, ...],
    attrs: dict[str, Attr],
    *,
    name: str,
    like: Op,
) -> Op:
    """Return an op with one result of the inferred type; its device and location are of `like`."""
    type_ = replace(infer_type(kind, operands, attrs), device=like.result.type.device)
    return Op(kind, operands, (Value(type_, name),), tuple(attrs.items()), like.loc)


def slice_attrs(x: Value, dim: int, start: Dim, extent: Dim, step: int = 1) -> dict[str, Attr]:
    """Return the attributes of a slice of one dimension."""
    rank = len(x.shape)
    return {
        "start": tuple(start if k == dim else 0 for k in range(rank)),
        "step": tuple(step if k == dim else 1 for k in range(rank)),
        "shape": (*x.shape[:dim], extent, *x.shape[dim + 1 :]),
        "dtype": x.dtype,
    }


def _elementwise(op: Op) -> TensorType:
    tensors = op.inputs
    if not tensors:
        raise VerifyError(f"{op.kind} needs a tensor operand")
    if any(t.shape != tensors[0].shape for t in tensors):
        raise VerifyError(f"{op.kind}: shapes differ: {[t.shape for t in tensors]}")
    shape = tensors[0].shape
    # an elementwise op on a GPU may read 0-d tensors in CPU memory
    device = next((t.type.device for t in tensors if not t.type.on_host), HOST)
    if op.kind == "convert":
        return TensorType(shape, _dtype(op), device)
    if op.kind in PREDICATES:
        return TensorType(shape, DType.BOOL, device)
    data = op.operands[1:] if op.kind == "where" else op.operands
    dtypes = {t.dtype for t in data if isinstance(t, Value)}
    if op.kind == "where" and not dtypes:
        return TensorType(shape, _dtype(op), device)
    if len(dtypes) != 1:
        raise VerifyError(f"{op.kind}: dtypes differ: {sorted(d.value for d in dtypes)}")
    return TensorType(shape, dtypes.pop(), device)


def _broadcast(op: Op) -> TensorType:
    x, shape, dims = _tensor(op), op.dims("shape"), op.ints("dims")
    if len(dims) != len(x.shape) or list(dims) != sorted(set(dims)):
        raise VerifyError(f"broadcast: dims {dims} do not fit rank {len(x.shape)}")
    if any(x.shape[k] != shape[d] for k, d in enumerate(dims)):
        raise VerifyError(f"broadcast: {x.shape} does not fit {shape} at {dims}")
    return TensorType(shape, x.dtype, x.type.device)


def _view(op: Op) -> TensorType:
    x = _tensor(op)
    if op.kind == "permute":
        dims = op.ints("dims")
        if sorted(dims) != list(range(len(x.shape))):
            raise VerifyError(f"permute: {dims} is not a permutation of rank {len(x.shape)}")
        return TensorType(tuple(x.shape[d] for d in dims), x.dtype, x.type.device)
    result = TensorType(op.dims("shape"), x.dtype, x.type.device)
    if op.kind == "reshape" and result.numel != x.type.numel:
        raise VerifyError(f"reshape: {x.shape} and {result.shape} differ in size")
    return result


def _concat_or_pad(op: Op) -> TensorType:
    if op.kind == "pad":
        x = _tensor(op)
        padded = zip(x.shape, op.dims("low"), op.dims("high"), strict=True)
        return TensorType(tuple(lo + hi + e for e, lo, hi in padded), x.dtype, x.type.device)
    dim, first = op.int("dim"), _tensor(op)
    extent: Dim = 0
    for t in op.inputs:
        extent = t.shape[dim] + extent
        if t.shape[:dim] + t.shape[dim + 1 :] != first.shape[:dim] + first.shape[dim + 1 :]:
            raise VerifyError(f"cat: {t.shape} does not fit {first.shape}")
    shape = (*first.shape[:dim], extent, *first.shape[dim + 1 :])
    return TensorType(shape, first.dtype, first.type.device)


def _gather(op: Op) -> TensorType:
    x, index = op.inputs
    if len(op.ints("dims")) != len(x.shape) or op.ints("dims").count(-1) != 1:
        raise VerifyError(f"take: dims {op.ints('dims')} do not fit rank {len(x.shape)}")
    return TensorType(index.shape, x.dtype, x.type.device)


def _reduce(op: Op) -> TensorType:
    x, dims = _tensor(op), op.ints("dims")
    if not dims or any(not 0 <= d < len(x.shape) for d in dims):
        raise VerifyError(f"{op.kind}: dims {dims} do not fit rank {len(x.shape)}")
    shape = tuple(e for k, e in enumerate(x.shape) if k not in dims)
    return TensorType(shape, _dtype(op), x.type.device)


def _scan(op: Op) -> TensorType:
    x = _tensor(op)
    if not 0 <= op.int("dim") < len(x.shape):
        raise VerifyError(f"{op.kind}: dim {op.int('dim')} does not fit rank {len(x.shape)}")
    return x.type


def _scatter(op: Op) -> TensorType:
    (x, index), shape, dim = op.inputs, op.dims("shape"), op.int("dim")
    if index.shape != x.shape or not index.dtype.is_int or len(shape) != len(x.shape):
        raise VerifyError(f"{op.kind}: {index.type} does not fit {x.type} and {shape}")
    if not 0 <= dim < len(shape) or op.attr("reduce") not in REDUCTION_COMBINES:
        raise VerifyError(f"{op.kind}: no {op.attr('reduce')} in dimension {dim} of {shape}")
    return TensorType(shape, x.dtype, x.type.device)


def _recurrence(op: Op) -> TensorType:
    step, steps, state = recurrence_of(op), op.int("steps"), op.int("state")
    starts, inputs = op.inputs[: step.states], op.inputs[step.states :]
    if len(starts) != step.states or len(op.inputs) != len(op.operands) or steps < 1:
        raise VerifyError(f"recurrence: {len(op.operands)} operands and {steps} steps")
    shape = (steps, *starts[0].shape)
    if any(s.shape != shape[1:] for s in starts) or any(x.shape != shape for x in inputs):
        raise VerifyError(f"recurrence: an operand does not fit {shape}")
    values = [x.type for x in starts]
    values += [replace(x.type, shape=shape[1:]) for x in inputs]
    for step_op in step.body:
        operands = tuple(
            Value(values[x], f"s{x}") if isinstance(x, int) else x for x in step_op.operands
        )
        if OPS[step_op.kind].pattern is not Pattern.ELEMENTWISE:
            raise VerifyError(f"recurrence: {step_op.kind} is not an elementwise op")
        values.append(infer_type(step_op.kind, operands, {"dtype": step_op.dtype}))
        if values[-1].dtype is not step_op.dtype:
            raise VerifyError(f"recurrence: {step_op.kind} is {values[-1].dtype.value}")
    for start, k in zip(starts, step.next, strict=True):
        if values[k].dtype is not start.dtype:
            raise VerifyError(f"recurrence: a state of {start.dtype.value} is {values[k]} next")
    return TensorType(shape, starts[state].dtype, starts[state].type.device)


def _contract(op: Op) -> TensorType:
    a, b = op.inputs
    (*batch, m, k), (*other_batch, depth, n) = a.shape, b.shape
    if (batch, k, a.dtype) != (other_batch, depth, b.dtype) or not a.dtype.is_float:
        raise VerifyError(f"contract: {a.type} does not fit {b.type}")
    return TensorType((*batch, m, n), _dtype(op), a.type.device)


def _random(op: Op) -> TensorType:
    if op.kind == "bernoulli" and not 0 < op.int("below") < HALF_WORDS:
        raise VerifyError(f"bernoulli: {op.int('below')} is not between 0 and {HALF_WORDS}")
    return _from_attrs(op)


def _from_attrs(op: Op) -> TensorType:
    return TensorType(op.dims("shape"), _dtype(op))


def _tensor(op: Op) -> Value:
    if not op.operands or isinstance(op.operands[0], Scalar):
        raise VerifyError(f"{op.kind} needs a tensor as its first operand")
    return op.inputs[0]


def _dtype(op: Op) -> DType:
    dtype = op.attr("dtype")
    assert isinstance(dtype, DType)
    return dtype


_RULES: dict[Pattern, Callable[[Op], TensorType]] = {
    Pattern.ELEMENTWISE: _elementwise,
    Pattern.BROADCAST: _broadcast,
    Pattern.VIEW: _view,
    Pattern.CONCAT: _concat_or_pad,
    Pattern.GATHER: _gather,
    Pattern.REDUCE: _reduce,
    Pattern.SCAN: _scan,
    Pattern.SCATTER: _scatter,
    Pattern.RECURRENCE: _recurrence,
    Pattern.CONTRACT: _contract,
    Pattern.RANDOM: _random,
    Pattern.SOURCE: _from_attrs,
    Pattern.OPAQUE: _from_attrs,
}
