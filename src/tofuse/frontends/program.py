"""The statements of a definition, and how each is lowered; a definition is a list of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Union

import torch

from tofuse.errors import DefinitionError
from tofuse.frontends.datatypes import DataType
from tofuse.frontends.lowering import Item, Lowered, Lowering, Node, Number, Rule
from tofuse.frontends.ops_index import INDEX
from tofuse.frontends.ops_make import MAKE
from tofuse.frontends.ops_matmul import MATMUL
from tofuse.frontends.ops_more import MORE
from tofuse.frontends.ops_norm import NORM, write
from tofuse.frontends.ops_reduce import REDUCE
from tofuse.frontends.ops_shape import SHAPE, relaid
from tofuse.ir.graph import Loc, Value
from tofuse.ir.types import TensorType

Constant = Union[bool, int, float, complex]  # noqa: UP007  (evaluated at run time)


@dataclass(frozen=True)
class Ref:
    """A tensor, scalar or vector by its number; `kind` is T, S or V."""

    index: int
    kind: str

    def __repr__(self) -> str:
        return f"{self.kind}{self.index}"


Argument = Union[  # noqa: UP007
    Ref, Constant, str, None, DataType, torch.dtype, Sequence["Argument"]
]


@dataclass(frozen=True)
class DefineTensor:
    """An input: -1 in `shape` is a symbol, 1 a broadcast dimension."""

    result: Ref
    shape: tuple[int, ...]
    contiguity: tuple[bool | None, ...]
    dtype: DataType
    is_cpu: bool
    stride_order: tuple[int, ...]
    loc: Loc | None


@dataclass(frozen=True)
class DefineScalar:
    """An input where `value` is None, else a constant."""

    result: Ref
    value: Constant | None
    dtype: DataType
    loc: Loc | None


@dataclass(frozen=True)
class DefineVector:
    """Given entries, or an input of so many integers."""

    result: Ref
    entries: tuple[Argument, ...] | None
    size: int
    loc: Loc | None


@dataclass(frozen=True)
class Call:
    """One of `fd.ops`, with its arguments by name in the order of the rule."""

    name: str
    arguments: tuple[tuple[str, Argument], ...]
    results: tuple[Ref, ...]
    loc: Loc | None


@dataclass(frozen=True)
class AddOutput:
    """A result; with `alias` it is written into that input instead of being returned."""

    source: Ref
    alias: Ref | None
    stride_order: tuple[int, ...]
    loc: Loc | None


Statement = Union[DefineTensor, DefineScalar, DefineVector, Call, AddOutput]  # noqa: UP007
Environment = dict[int, Lowered]

RULES: Mapping[str, Rule] = {**MORE, **REDUCE, **SHAPE, **INDEX, **MAKE, **MATMUL, **NORM}

# Names that older releases, or torch, use for the same parameter.
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
    """The parameters of an op, without the lowering it works on."""
    signature = inspect.signature(RULES[name])
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def lower(low: Lowering, statement: Statement, env: Environment) -> tuple[Lowered, ...]:
    """Append a statement to the graph; its results, which are also put into `env`."""
    match statement:
        case DefineTensor():
            low.at("define_tensor", statement.loc)
            return _bind(env, (statement.result,), [_tensor(low, statement)])
        case DefineScalar():
            low.at("define_scalar", statement.loc)
            return _bind(env, (statement.result,), [_scalar(low, statement)])
        case DefineVector():
            low.at("define_vector", statement.loc)
            return _bind(env, (statement.result,), [_vector(low, statement, env)])
        case Call():
            low.at(statement.name, statement.loc)
            return _bind(env, statement.results, call(low, statement, env))
        case AddOutput():
            low.at("add_output", statement.loc)
            _output(low, statement, env)
            return ()


def call(low: Lowering, statement: Call, env: Environment) -> list[Lowered]:
    """The results of an op."""
    arguments = {name: resolve(a, env) for name, a in statement.arguments}
    try:
        made = RULES[statement.name](low, **arguments)
    except DefinitionError as e:
        if str(e).startswith(f"{statement.name}:"):
            raise
        raise low.fail(str(e)) from None
    return list(made) if isinstance(made, list) else [made]


def resolve(argument: Argument, env: Environment) -> object:
    """An argument as a rule takes it."""
    if isinstance(argument, Ref):
        return env[argument.index]
    if isinstance(argument, (list, tuple)):
        return tuple(resolve(a, env) for a in argument)
    return argument


def _bind(env: Environment, results: Sequence[Ref], made: Sequence[Lowered]) -> tuple[Lowered, ...]:
    for ref, item in zip(results, made, strict=False):
        env[ref.index] = item
    return tuple(made)


def _tensor(low: Lowering, s: DefineTensor) -> Node:
    k = len(low.arguments)
    shape = tuple(
        low.symbol(f"i{k}d{d}", ("size", k, d)) if e == -1 else e for d, e in enumerate(s.shape)
    )
    layout = low.layouts[k] if k < len(low.layouts) else None
    strides = None
    if layout is not None:
        strides = layout.strides(shape, lambda d: low.symbol(f"i{k}s{d}", ("stride", k, d)))
    device = "cpu" if s.is_cpu else low.device
    value = Value(TensorType(shape, s.dtype.ir, device), repr(s.result), strides)
    node = low.node(value, s.dtype)
    low.arguments.append(node)
    return node


def _scalar(low: Lowering, s: DefineScalar) -> Item:
    if s.value is not None:
        return low.number(s.value, s.dtype)
    k = len(low.arguments)
    if s.dtype.is_int:
        item: Item = low.number(low.symbol(f"i{k}n", ("argument", k, 0)), s.dtype)
    else:
        value = Value(TensorType((), s.dtype.ir), repr(s.result))  # in the CPU's memory
        item = low.node(value, s.dtype, scalar=True)
    low.arguments.append(item)
    return item


def _vector(low: Lowering, s: DefineVector, env: Environment) -> tuple[Item, ...]:
    if s.entries is None:
        made: list[Item] = []
        for _ in range(s.size):
            k = len(low.arguments)
            made.append(low.number(low.symbol(f"i{k}n", ("argument", k, 0)), DataType.Int))
            low.arguments.append(made[-1])
        return tuple(made)
    found = []
    for entry in s.entries:
        item = env[entry.index] if isinstance(entry, Ref) else entry
        if not isinstance(item, (Node, Number, bool, int, float, complex)):
            raise low.fail(f"an entry is {item!r}")
        found.append(low.operand(item))
    return tuple(found)


def _output(low: Lowering, s: AddOutput, env: Environment) -> None:
    item = env[s.source.index]
    if isinstance(item, tuple):
        if s.alias is not None:
            raise low.fail("a vector has no buffer to write")
        low.outputs.append((item, None))
        return
    if s.stride_order and isinstance(item, Node):
        item = relaid(low, item, s.stride_order)
    if s.alias is None:
        low.outputs.append((item, None))
        return
    target = env[s.alias.index]
    places = [k for k, a in enumerate(low.arguments) if a is target]
    if not places or not isinstance(target, Node) or target.scalar:
        raise low.fail(f"{s.alias} is no tensor input, so nothing can be written into it")
    if not isinstance(item, Node):
        raise low.fail(f"{s.source} is a scalar, {s.alias} a tensor")
    write(low, item, target)
