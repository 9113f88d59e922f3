"""Reference implementation of every op: a slow evaluator of graphs on torch tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Union

import torch
from torch import Tensor

from tofuse.ir.call_arguments import CallArgument, CallArguments, Device, OperandRef, TorchConstant
from tofuse.ir.dims import SymDim, evaluate
from tofuse.ir.graph import Attr, Graph, Op, Operand, Value
from tofuse.ir.recurrence import StepOp, StepOperand, recurrence_of
from tofuse.ir.size_expression import ArgumentSize, SizeExpression, SizeSource, evaluate_size
from tofuse.ir.types import DType
from tofuse.ops.indexed import scatter_reduce, take
from tofuse.ops.philox import bernoulli, uniform
from tofuse.ops.table import OPS, Pattern, scan_dtype

Sizes = Mapping[str, int]
Number = Union[bool, int, float]  # noqa: UP007  (evaluated at run time)


def run_graph(graph: Graph, inputs: Mapping[Value, Tensor], sizes: Sizes) -> dict[Value, Tensor]:
    """Return the value of every result, rounded to its dtype at each op, with its strides.

    `sizes` binds every symbol. Ops that mutate their inputs mutate the given tensors.
    """
    env = dict(inputs)
    for op in graph.ops:
        for value, tensor in zip(op.results, _run(op, env, sizes), strict=True):
            env[value] = tensor if op.kind == "opaque" else _with_strides(tensor, value, sizes)
    return env


def bind_symbols(symbols: Mapping[str, SizeSource], arguments: Sequence[object]) -> dict[str, int]:
    """Return the value of every symbol, read from the flat arguments of a call.

    An expression must come after the symbols it uses.
    """
    sizes: dict[str, int] = {}
    for name, source in symbols.items():
        if isinstance(source, ArgumentSize):
            sizes[name] = argument_size(source, arguments)
        else:
            sizes[name] = int(evaluate_size(source, sizes))
    return sizes


def argument_size(source: ArgumentSize, arguments: Sequence[object]) -> int:
    """Return a size that is read from the flat arguments of a call."""
    argument = arguments[source.argument]
    if isinstance(argument, Tensor):
        of = argument.shape if source.kind == "size" else argument.stride()
        return of[source.dim]
    assert isinstance(argument, int)
    return argument


def _run(op: Op, env: Mapping[Value, Tensor], sizes: Sizes) -> list[Tensor]:
    operands = [_operand(x, op, env, sizes) for x in op.operands]
    pattern = OPS[op.kind].pattern
    if pattern == Pattern.OPAQUE:
        return _opaque(op, operands, sizes)
    if pattern == Pattern.RECURRENCE:
        return [_recurrence(op, operands)]
    attrs = {key: _concrete(value, sizes) for key, value in op.attrs}
    if pattern == Pattern.ELEMENTWISE:
        return [run_elementwise(op.kind, op.result.dtype, operands)]
    return [REFERENCE[op.kind](*operands, **attrs)]


def run_elementwise(kind: str, dtype: DType, operands: Sequence[Tensor]) -> Tensor:
    """Return an elementwise op of operands, computed at least in float32 and rounded."""
    if kind == "convert":
        return operands[0].to(TO_TORCH[dtype], copy=True)
    wide = [x.to(_wide(x.dtype)) for x in operands]
    result: Tensor = REFERENCE[kind](*wide)
    return result.to(TO_TORCH[dtype])


def _operand(x: Operand, op: Op, env: Mapping[Value, Tensor], sizes: Sizes) -> Tensor:
    """Return a tensor operand; a scalar becomes a 0-d tensor of the op's computation dtype."""
    if isinstance(x, Value):
        return env[x]
    tensors = [t.dtype for t in op.inputs]
    dtype = tensors[-1] if op.kind != "where" or len(tensors) > 1 else op.result.dtype
    value = x.value if isinstance(x.value, (bool, int, float)) else evaluate(x.value, sizes)
    return _constant(value, dtype)


def _constant(value: bool | int | float, dtype: DType) -> Tensor:
    """Return a 0-d tensor of the dtype in which ops of `dtype` compute."""
    if isinstance(value, int) and dtype.is_int:  # it wraps, as in eager
        return torch.tensor(value, dtype=torch.int64).to(TO_TORCH[dtype])
    return torch.tensor(value, dtype=_wide(TO_TORCH[dtype]))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _concrete(value: Attr, sizes: Sizes) -> object:
    """Return an attribute with ints for sizes and torch dtypes for dtypes."""
    match value:
        case tuple():
            return tuple(_concrete(v, sizes) for v in value)
        case DType():
            return TO_TORCH[value]
        case bool() | int() | float() | str() | None:
            return value
        case CallArguments():
            raise AssertionError("only opaque ops have call arguments")
        case _:
            return evaluate(value, sizes)


def _with_strides(tensor: Tensor, value: Value, sizes: Sizes) -> Tensor:
    strides = tuple(evaluate(s, sizes) for s in value.layout)
    if tensor.stride() == strides or tensor.numel() == 0:
        return tensor
    if value.strides is None:
        return tensor.contiguous()
    result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
    if 0 in strides:  # a broadcast view: copy_ would write an element more than once
        return result.copy_(tensor) if tensor.numel() == 1 else tensor
    return result.copy_(tensor)


OFFSET_STEP = 4  # by which a seed advances the offset of a GPU's generator: the least step
SEED_MASK = 0x746F66757365  # keeps our numbers apart from those of torch's own kernels


def draw_seed(device: torch.device | None = None) -> Tensor:
    """Return two random 64-bit words from a device's default generator: `tofuse::seed`.

    For a GPU they are its generator's seed and offset, in CPU memory. While its stream is captured
    they are drawn on the GPU, so that each replay of the graph draws others.
    """
    if device is None or device.type != "cuda":
        return torch.empty(2, dtype=torch.int64).random_()
    if torch.cuda.is_current_stream_capturing():
        return torch.empty(2, dtype=torch.int64, device=device).random_()
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    offset = generator.get_offset()
    generator.set_offset(offset + OFFSET_STEP)
    seed = (generator.initial_seed() ^ SEED_MASK) % (1 << 64)
    return torch.tensor([seed - (seed >> 63 << 64), offset // OFFSET_STEP])


def resolve_operator(target: str) -> Callable[..., object]:
    """Return the PyTorch operator of a name such as 'aten.mm.default'."""
    operator: Callable[..., object] = attrgetter(target)(torch.ops)
    return operator


def _opaque(op: Op, operands: list[Tensor], sizes: Sizes) -> list[Tensor]:
    args = [_argument(a, operands, sizes) for a in op.arguments.positional]
    kwargs = {k: _argument(a, operands, sizes) for k, a in op.arguments.keyword}
    returned = resolve_operator(str(op.attr("target")))(*args, **kwargs)
    if not op.results:
        return []
    if all(name != "picks" for name, _ in op.attrs):
        assert isinstance(returned, Tensor)
        return [returned]
    assert isinstance(returned, (list, tuple))
    return [returned[k] for k in op.ints("picks")]


def _argument(argument: CallArgument, operands: Sequence[Tensor], sizes: Sizes) -> object:
    match argument:
        case OperandRef(index):
            return operands[index]
        case tuple():
            return [_argument(a, operands, sizes) for a in argument]
        case SymDim() | SizeExpression():
            return evaluate_size(argument, sizes)
        case _:
            return torch_constant(argument)


def torch_constant(argument: CallArgument) -> object:
    """Return the object of torch or Python that a constant argument stands for."""
    match argument:
        case Device(name):
            return torch.device(name)
        case TorchConstant(name):
            return getattr(torch, name)
        case _:
            return argument


def _broadcast(x: Tensor, shape: tuple[int, ...], dims: tuple[int, ...]) -> Tensor:
    spread = [1] * len(shape)
    for k, d in enumerate(dims):
        spread[d] = x.shape[k]
    return x.reshape(spread).expand(shape)


def _slice(
    x: Tensor,
    start: tuple[int, ...],
    step: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Tensor:
    for dim, (first, jump, extent) in enumerate(zip(start, step, shape, strict=True)):
        x = x.index_select(dim, first + jump * torch.arange(extent))
    return x


def _pad(x: Tensor, fill: Tensor, low: tuple[int, ...], high: tuple[int, ...]) -> Tensor:
    amounts = [a for pair in zip(reversed(low), reversed(high), strict=True) for a in pair]
    return torch.nn.functional.pad(x, amounts, value=fill.item())


def _reduction(kind: str) -> Callable[..., Tensor]:
    def reduce(x: Tensor, dims: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        kept = [d for d in range(x.dim()) if d not in dims]
        count = math.prod(x.shape[d] for d in dims)
        rows = x.permute(*kept, *dims).reshape([x.shape[d] for d in kept] + [count])
        return reduce_rows(kind, rows, dtype)

    return reduce


def reduce_rows(kind: str, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Reduce the last dimension; sums and products accumulate in `dtype`."""
    function = getattr(torch, kind)
    accumulates = kind in ("sum", "prod")
    result: Tensor = function(rows, -1, dtype=dtype) if accumulates else function(rows, -1)
    return result.to(dtype)


def _scan(kind: str) -> Callable[..., Tensor]:
    def scan(x: Tensor, dim: int, reverse: bool) -> Tensor:
        wide = x.to(TO_TORCH[scan_dtype(kind, FROM_TORCH[x.dtype])])
        rows = scan_rows(kind, wide.transpose(dim, -1), reverse)
        return rows.transpose(dim, -1).to(x.dtype)

    return scan


def scan_rows(kind: str, rows: Tensor, reverse: bool) -> Tensor:
    """Return the running results along the last dimension, in the dtype of `rows`."""
    rows = rows.flip(-1) if reverse else rows
    if kind in ("cumsum", "cumprod"):
        result: Tensor = getattr(torch, kind)(rows, -1, dtype=rows.dtype)
    elif kind == "logcumsumexp":
        result = rows.logcumsumexp(-1)
    else:
        result = getattr(torch, kind)(rows, -1).values
    return result.flip(-1) if reverse else result


def _recurrence(op: Op, operands: list[Tensor]) -> Tensor:
    """Return a state before each step; half precision stays in float32, as in kernels."""
    step, dtype = recurrence_of(op), TO_TORCH[op.result.dtype]
    operands = [x.to(_wide(x.dtype)) for x in operands]
    states, inputs = operands[: step.states], operands[step.states :]
    before = []
    for t in range(op.int("steps")):
        before.append(states[op.int("state")])
        values = [*states, *(x[t] for x in inputs)]
        for s in step.body:
            arguments = [_step_operand(x, values, s) for x in s.operands]
            held = s.dtype if s.kind == "convert" else s.dtype.opmath
            result = run_elementwise(s.kind, held, arguments)
            values.append(result.to(_wide(result.dtype)))
        states = [values[k] for k in step.next]
    return torch.stack(before).to(dtype)


def _step_operand(x: StepOperand, values: Sequence[Tensor], op: StepOp) -> Tensor:
    if isinstance(x, int):
        return values[x]
    tensors = [FROM_TORCH[values[k].dtype] for k in op.operands if isinstance(k, int)]
    dtype = tensors[-1] if op.kind != "where" or len(tensors) > 1 else op.dtype
    assert isinstance(x.value, (bool, int, float))
    return _constant(x.value, dtype)


def _contract(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the products of matrices, accumulated in float32 or float64 and rounded once."""
    if dtype is a.dtype:
        return torch.matmul(a, b)
    return torch.matmul(a.to(_wide(a.dtype)), b.to(_wide(b.dtype))).to(dtype)


def from_torch_dtype(dtype: torch.dtype) -> DType:
    """Return the IR's dtype of a torch dtype; OTHER for dtypes that only PyTorch handles."""
    return FROM_TORCH.get(dtype, DType.OTHER)


def _uniform(seed: Tensor, stream: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    first, second = seed.tolist()
    return torch.from_numpy(uniform((first, second), shape, stream))


def _bernoulli(
    seed: Tensor, stream: int, below: int, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    first, second = seed.tolist()
    return torch.from_numpy(bernoulli((first, second), shape, stream, below))


TO_TORCH = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F8E4M3: torch.float8_e4m3fn,
    DType.F8E5M2: torch.float8_e5m2,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}

FROM_TORCH = {torch_dtype: dtype for dtype, torch_dtype in TO_TORCH.items()}

# The byte that a number too large for fp8 is converted to; versions of PyTorch differ.
FP8_OVERFLOW = {
    fp8: int(torch.tensor([1e30], device="cpu").to(dtype).view(torch.uint8)[0])
    for fp8, dtype in TO_TORCH.items()
    if fp8.is_fp8
}

_RULES: dict[str, Callable[..., Tensor]] = {
    **{name: _reduction(name) for name, row in OPS.items() if row.pattern is Pattern.REDUCE},
    **{name: _scan(name) for name, row in OPS.items() if row.pattern is Pattern.SCAN},
    # ATen has separate kernels for constant exponents: x * x for 2, a root for 0.5
    "pow": lambda a, b: torch.pow(a, b.item() if b.dim() == 0 else b),
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "convert": lambda x, dtype: x.to(dtype, copy=True),
    "broadcast": _broadcast,
    "reshape": lambda x, shape: x.reshape(shape),
    "permute": lambda x, dims: x.permute(dims),
    "slice": _slice,
    "cat": lambda *parts, dim: torch.cat(parts, dim),
    "pad": _pad,
    "take": take,
    "scatter_reduce": scatter_reduce,
    "contract": _contract,
    "full": lambda value, shape, dtype: torch.full(shape, value, dtype=dtype),
    "iota": lambda start, step, shape, dtype: (start + step * torch.arange(shape[0])).to(dtype),
    "uniform": _uniform,
    "bernoulli": _bernoulli,
}

# All other elementwise ops are named as torch's functions.
REFERENCE: dict[str, Callable[..., Tensor]] = _RULES | {
    name: getattr(torch, name)
    for name, row in OPS.items()
    if row.pattern is Pattern.ELEMENTWISE and name not in _RULES
}
