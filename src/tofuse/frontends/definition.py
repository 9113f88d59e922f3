"""The statements of a definition, and the lowering of each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Union

import torch

from tofuse.errors import DefinitionError
from tofuse.frontends.datatypes import DataType
from tofuse.frontends.input_layouts import dims_slow_to_fast
from tofuse.frontends.items import Item, Lowered, Node, Number, Rule
from tofuse.frontends.lowering import Lowering, SizesMustBeEqual
from tofuse.frontends.ops_attention import ATTENTION
from tofuse.frontends.ops_factory import FACTORY
from tofuse.frontends.ops_grouped import GROUPED
from tofuse.frontends.ops_index import INDEX
from tofuse.frontends.ops_matmul import MATMUL
from tofuse.frontends.ops_norm import NORM, write_input
from tofuse.frontends.ops_pointwise import POINTWISE
from tofuse.frontends.ops_quantize import QUANTIZE
from tofuse.frontends.ops_reduce import REDUCE
from tofuse.frontends.ops_shape import SHAPE, with_stride_order
from tofuse.frontends.ops_slice import SLICE
from tofuse.ir.dims import strides_in
from tofuse.ir.graph import Loc, Value
from tofuse.ir.size_expression import ArgumentSize
from tofuse.ir.types import HOST, TensorType

Constant = Union[bool, int, float, complex]  # noqa: UP007  (evaluated at run time)


@dataclass(frozen=True)
class Ref:
    """A reference to a tensor, scalar or vector by number; `kind` is T, S or V.

    It is N for a result that is left out, as None.
    """

    index: int
    kind: str

    def __repr__(self) -> str:
        return f"{self.kind}{self.index}"


Argument = Union[  # noqa: UP007
    Ref, Constant, str, None, DataType, torch.dtype, Sequence["Argument"]
]


@dataclass(frozen=True)
class DefineTensor:
    """A tensor input; in `shape`, -1 is a symbolic size and 1 a broadcast dimension.

    `contiguity` lists the dimensions from slowest to fastest, None if broadcast or expanded.
    """

    name: ClassVar[str] = "define_tensor"
    result: Ref
    shape: tuple[int, ...]
    contiguity: tuple[bool | None, ...]
    dtype: DataType
    is_cpu: bool
    stride_order: tuple[int, ...]
    loc: Loc | None


@dataclass(frozen=True)
class DefineScalar:
    """A constant, or an input if `value` is None."""

    name: ClassVar[str] = "define_scalar"
    result: Ref
    value: Constant | None
    dtype: DataType
    loc: Loc | None


@dataclass(frozen=True)
class DefineVector:
    """A vector of `entries`, or an input of `size` integers if `entries` is None."""

    name: ClassVar[str] = "define_vector"
    result: Ref
    entries: tuple[Argument, ...] | None
    size: int
    loc: Loc | None


@dataclass(frozen=True)
class OpCall:
    """A call of one of `fd.ops`; its arguments have names, in the order of the rule."""

    name: str
    arguments: tuple[tuple[str, Argument], ...]
    results: tuple[Ref, ...]
    loc: Loc | None


@dataclass(frozen=True)
class AddOutput:
    """An output; with `alias`, it is written into that input and not returned."""

    name: ClassVar[str] = "add_output"
    source: Ref
    alias: Ref | None
    stride_order: tuple[int, ...]
    loc: Loc | None


Statement = Union[DefineTensor, DefineScalar, DefineVector, OpCall, AddOutput]  # noqa: UP007
Environment = list[Lowered]  # by the index of a Ref

RULES: Mapping[str, Rule] = {
    **POINTWISE, **REDUCE, **SHAPE, **SLICE, **INDEX, **FACTORY, **MATMUL, **ATTENTION, **NORM,
    **QUANTIZE, **GROUPED,
}  # fmt: skip

# other names of a parameter, from older releases of nvFuser and from torch
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "axes": ("dims",),
    "axis": ("dim", "dims"),
    "dim": ("dims",),
    "dims": ("dim",),
    "keep_dim": ("keepdim",),
    "output_shape": ("shape",),
    "size": ("shape",),
    "input": ("arg", "arg1"),
    "arg": ("fill_value", "arg1"),
    "arg1": ("arg",),
    "unbiased": ("correction",),
}


@lru_cache(maxsize=256)
def parameters(name: str) -> inspect.Signature:
    """Return the parameters of an op, without its Lowering."""
    signature = inspect.signature(RULES[name])
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def lower_statements(
    low: Lowering, statements: Sequence[Statement]
) -> tuple[Lowering, Environment]:
    """Lower a definition, again from the start whenever an op requires two sizes to be equal."""
    while True:
        env = Environment()
        try:
            for statement in statements:
                lower_statement(low, statement, env)
            return low, env
        except SizesMustBeEqual as required:
            low = low.with_equality(required.equality)


def lower_statement(low: Lowering, statement: Statement, env: Environment) -> list[Lowered]:
    """Lower a statement; return its results and append them to `env`."""
    low.begin_op(statement.name, statement.loc)
    results: list[Lowered] = []
    match statement:
        case DefineTensor():
            results.append(_tensor(low, statement))
        case DefineScalar():
            results.append(_scalar(low, statement))
        case DefineVector():
            results.append(_vector(low, statement, env))
        case OpCall():
            results += _lower_call(low, statement, env)
        case AddOutput():
            _output(low, statement, env)
    env += results
    return results


def _lower_call(low: Lowering, statement: OpCall, env: Environment) -> list[Lowered]:
    """Lower a call of an op; return its results."""
    arguments = {name: _resolve_argument(a, env) for name, a in statement.arguments}
    try:
        lowered = RULES[statement.name](low, **arguments)
    except DefinitionError as e:
        if str(e).startswith(f"{statement.name}:"):
            raise
        raise low.error(str(e)) from None
    return [lowered] if isinstance(lowered, (Node, Number, tuple)) else list(lowered or ())


def _resolve_argument(argument: Argument, env: Environment) -> object:
    """Replace references in an argument by their lowered values."""
    if isinstance(argument, Ref):
        return env[argument.index]
    if isinstance(argument, (list, tuple)):
        return tuple(_resolve_argument(a, env) for a in argument)
    return argument


def _tensor(low: Lowering, s: DefineTensor) -> Node:
    k = len(low.arguments)
    shape = tuple(
        low.symbol(f"i{k}d{d}", ArgumentSize("size", k, d)) if e == -1 else e
        for d, e in enumerate(s.shape)
    )
    layout = low.stride_patterns[k] if k < len(low.stride_patterns) else None
    strides = None
    if layout is not None:
        strides = layout.strides(
            shape, lambda d: low.symbol(f"i{k}s{d}", ArgumentSize("stride", k, d))
        )
    device = HOST if s.is_cpu else low.device
    value = Value(TensorType(shape, s.dtype.ir, device), repr(s.result), strides)
    packed = s.dtype is DataType.Float4_e2m1fn_x2
    node = Node(value, DataType.Float4_e2m1fn if packed else s.dtype)
    low.arguments.append(node)
    order = dims_slow_to_fast(s.stride_order, len(shape))
    low.declared_strides[value] = strides_in(order, shape)
    return node


def _scalar(low: Lowering, s: DefineScalar) -> Item:
    if s.value is not None:
        return Number(s.value, s.dtype)
    if s.dtype.is_int:
        return _integer_input(low, s.dtype)
    value = Value(TensorType((), s.dtype.ir), repr(s.result))  # in CPU memory
    node = Node(value, s.dtype, scalar=True)
    low.arguments.append(node)
    return node


def _integer_input(low: Lowering, dtype: DataType) -> Number:
    k = len(low.arguments)
    number = Number(low.symbol(f"i{k}n", ArgumentSize("argument", k)), dtype)
    low.arguments.append(number)
    return number


def _vector(low: Lowering, s: DefineVector, env: Environment) -> tuple[Item, ...]:
    if s.entries is None:
        return tuple(_integer_input(low, DataType.Int) for _ in range(s.size))
    found = []
    for entry in s.entries:
        item = env[entry.index] if isinstance(entry, Ref) else entry
        if not isinstance(item, (Node, Number, bool, int, float, complex)):
            raise low.error(f"an entry must be a scalar or a number, not {item!r}")
        found.append(low.operand(item))
    return tuple(found)


def _output(low: Lowering, s: AddOutput, env: Environment) -> None:
    item = env[s.source.index]
    assert item is not None  # a result that is left out has no proxy
    if s.alias is not None and isinstance(item, tuple):
        raise low.error("a vector cannot be written into an input")
    if s.stride_order and isinstance(item, Node):
        item = with_stride_order(low, item, s.stride_order)
    if s.alias is None:
        low.outputs.append((item, None))
        return
    target = env[s.alias.index]
    if not isinstance(target, Node) or target not in low.arguments or target.scalar:
        raise low.error(f"{s.alias} is not a tensor input and cannot be written")
    if not isinstance(item, Node):
        raise low.error(f"{s.source} is a scalar and cannot be written into the tensor {s.alias}")
    write_input(low, item, target)
