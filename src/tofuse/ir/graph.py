"""Graph: a straight-line, functional program over tensors, in SSA form and topological order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import Union

from tofuse.ir.call_arguments import CallArguments, OperandRef, exact_key
from tofuse.ir.dims import Dim, SymDim, contiguous_strides, show_strides
from tofuse.ir.types import HOST, DType, TensorType

Attr = Union[  # noqa: UP007
    int, float, bool, str, None, SymDim, DType, CallArguments, tuple["Attr", ...]
]


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor of a graph, compared by identity.

    `strides` (in elements) are those seen at capture; None means row-major.
    """

    type: TensorType
    name: str
    strides: tuple[Dim, ...] | None = None

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @cached_property
    def layout(self) -> tuple[Dim, ...]:
        """The strides; row-major if capture gave none."""
        return contiguous_strides(self.shape) if self.strides is None else self.strides

    @property
    def is_row_major(self) -> bool:
        """Whether the strides are row-major."""
        return self.strides is None or self.strides == contiguous_strides(self.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.type!r}"


@dataclass(frozen=True, eq=False)
class Scalar:
    """A constant operand. Compare `key`: 0.0 is not -0.0, and 1 is not True."""

    value: bool | int | float | SymDim

    @property
    def key(self) -> Hashable:
        return exact_key(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


Operand = Union[Value, Scalar]  # noqa: UP007


@dataclass(frozen=True)
class Loc:
    """The source line of an op, with the user's fusion hint for it.

    `fusion_hint` is "", "fuse", or "no_fuse" followed by the name of the one call it applies to.
    `call_count` is the number of user calls the op replaces; 0 for a copy that the compiler adds.
    """

    file: str
    line: int
    code: str = ""
    fusion_hint: str = field(default="", compare=False)
    call_count: int = field(default=1, compare=False)

    def __repr__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def place(self) -> str:
        """The file without its folders, and the line."""
        return f"{PurePath(self.file).name}:{self.line}"


@dataclass(frozen=True, eq=False)
class Op:
    """One operation. `kind` names a row of `tofuse.ops.table`."""

    kind: str
    operands: tuple[Operand, ...]
    results: tuple[Value, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    loc: Loc | None = None

    @property
    def result(self) -> Value:
        return self.results[0]

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """The tensor operands, in order, with repeats."""
        return tuple(x for x in self.operands if isinstance(x, Value))

    def redefined(self, kind: str, *operands: Operand, **attrs: Attr) -> Op:
        """Return another op that defines the same results."""
        return Op(kind, operands, self.results, tuple(attrs.items()), self.loc)

    @property
    def call_count(self) -> int:
        """The number of user calls this op replaces."""
        return self.loc.call_count if self.loc is not None else 1

    def attr(self, name: str) -> Attr:
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(f"{self.kind} has no attribute {name!r}")

    def ints(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a tuple of plain integers."""
        value = self.attr(name)
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, int))

    def dims(self, name: str) -> tuple[Dim, ...]:
        """Return an attribute that is a tuple of sizes."""
        value = self.attr(name)
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, (int, SymDim)))

    def int(self, name: str) -> int:
        """Return an attribute that is one integer."""
        value = self.attr(name)
        assert isinstance(value, int)
        return value

    @property
    def arguments(self) -> CallArguments:
        """The arguments of an opaque op's call."""
        value = self.attr("args")
        assert isinstance(value, CallArguments)
        return value

    @property
    def argument_tensors(self) -> tuple[Value, ...] | None:
        """The tensors in the order of the call's arguments; None if it has other arguments."""
        positional, keyword = self.arguments.positional, self.arguments.keyword
        found = tuple(self.inputs[a.index] for a in positional if isinstance(a, OperandRef))
        return found if len(found) == len(positional) and not keyword else None

    def __repr__(self) -> str:
        return f"{', '.join(r.name for r in self.results)} = {self.kind}(...)"


@dataclass(frozen=True, eq=False)
class Graph:
    """Inputs, ops in topological order, and outputs.

    An output may be an input and may be repeated. None marks an output that is not a tensor.
    """

    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Value | None, ...]
    name: str = "graph"

    def producers(self) -> dict[Value, Op]:
        return {r: op for op in self.ops for r in op.results}

    def users(self) -> dict[Value, list[Op]]:
        """Return the ops that read each value, in program order, without repeats."""
        users: dict[Value, list[Op]] = {}
        for op in self.ops:
            for v in dict.fromkeys(op.inputs):
                users.setdefault(v, []).append(op)
        return users

    def values(self) -> Iterator[Value]:
        """Yield the inputs, then the results of every op."""
        yield from self.inputs
        for op in self.ops:
            yield from op.results

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.ops)} ops>"


class Names:
    """A supply of value names that a graph does not use yet."""

    def __init__(self, graph: Graph) -> None:
        self._taken = {v.name for v in graph.values()}

    def fresh(self, name: str) -> str:
        """Return `name` with enough underscores appended to be unique, and reserve it."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def substitute_operands(
    operands: Iterable[Operand], mapping: Mapping[Value, Operand]
) -> tuple[Operand, ...]:
    """Return the operands with each value replaced by its entry in `mapping`, if it has one."""
    return tuple(mapping.get(x, x) if isinstance(x, Value) else x for x in operands)


def substitute_values(graph: Graph, mapping: Mapping[Value, Value]) -> Graph:
    """Return the graph with each value replaced by its entry in `mapping`, if it has one."""

    def new(v: Value) -> Value:
        return mapping.get(v, v)

    ops = (
        replace(
            op,
            operands=substitute_operands(op.operands, mapping),
            results=tuple(map(new, op.results)),
        )
        for op in graph.ops
    )
    outputs = tuple(None if v is None else new(v) for v in graph.outputs)
    return replace(graph, inputs=tuple(map(new, graph.inputs)), ops=tuple(ops), outputs=outputs)


def device_of(ops: Sequence[Op]) -> str:
    """Return the device of the results of a group of ops."""
    return next((r.type.device for op in ops for r in op.results), HOST)


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
    args = [x.name if isinstance(x, Value) else repr(x) for x in op.operands]
    args += [f"{name}={show_attr(value)}" for name, value in op.attrs]
    text = f"{op.kind}({', '.join(args)})"
    if op.results:
        left = ", ".join(r.name for r in op.results)
        text = f"{left} = {text} : {', '.join(map(show_value_type, op.results))}"
    if op.loc is None:
        return text
    hint = f" ({op.loc.fusion_hint})" if op.loc.fusion_hint else ""
    return f"{text}  # at {op.loc!r}{hint}"


def show_value_type(value: Value) -> str:
    """Return `f32[4,s0]`, or `f32[4,s0]{1,4}` for a value that carries strides."""
    return repr(value.type) + show_strides(value.strides)


def show_attr(value: Attr) -> str:
    """Return Python's text of an attribute, with dtypes and sizes printed by name."""
    if isinstance(value, DType):
        return value.value
    if isinstance(value, CallArguments):
        return repr(repr(value))
    if isinstance(value, tuple):
        return f"({', '.join(map(show_attr, value))}{',' if len(value) == 1 else ''})"
    return repr(value)
