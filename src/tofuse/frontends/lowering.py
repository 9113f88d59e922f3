"""The Graph of a definition under construction, and the sizes that its ops force to be equal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

import torch

from tofuse.capture.fx.sizes import Sizes, Source
from tofuse.capture.lower.builder import Builder
from tofuse.errors import DefinitionError
from tofuse.frontends.datatypes import DataType, Typed, number_type, promote
from tofuse.frontends.input_layouts import Layout
from tofuse.frontends.substitution import Substitution
from tofuse.ir.dims import Dim, SymDim, product, show_dim, symbol, symbols_of
from tofuse.ir.graph import Attr, Loc, Op, Scalar, Value
from tofuse.ir.types import DType, TensorType

WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(eq=False)
class Node:
    """A tensor of the definition, or (`scalar`) a number that is known only when it runs.

    `value` changes when sizes turn out to be equal: read it after the last `equal` of a rule.
    """

    value: Value
    dtype: DataType
    scalar: bool = False

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.value.shape

    @property
    def rank(self) -> int:
        return len(self.value.shape)


@dataclass(eq=False)
class Number:
    """A constant, or an integer that sizes and integer inputs determine."""

    value: bool | int | float | complex | SymDim
    dtype: DataType


Item = Union[Node, Number]  # noqa: UP007  (evaluated at run time)
Lowered = Union[Node, Number, tuple[Item, ...]]  # noqa: UP007
Rule = Callable[..., Union[Lowered, list[Node]]]  # noqa: UP007  (a list: several results)
Given = Union[Node, Number, bool, int, float, complex]  # noqa: UP007


@dataclass
class Draw:
    """Two seed words, and how many streams of random numbers were taken from them."""

    seed: Node
    streams: int = 0


@dataclass(frozen=True)
class Guard:
    """Two sizes that an op needs to be equal when the program runs."""

    a: Dim
    b: Dim
    reason: str


@dataclass
class Lowering:
    """One pass over a definition.

    `sizes` fixes symbols to the numbers of one call; `layouts` says how each tensor input lies.
    `pinned` collects the symbols that a later pass needs as numbers, to prove sizes equal.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    layouts: Sequence[Layout | None] = ()
    device: str = "cpu"
    build: Builder = field(default_factory=lambda: Builder(Sizes()))
    nodes: list[Item] = field(default_factory=list)
    arguments: list[Item] = field(default_factory=list)
    constants: list[tuple[Node, torch.Tensor]] = field(default_factory=list)
    symbols: dict[str, Source] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    pinned: dict[str, None] = field(default_factory=dict)
    positive: list[tuple[Dim, str]] = field(default_factory=list)  # sizes that must not be 0
    replaced: list[Substitution] = field(default_factory=list)
    outputs: list[tuple[Lowered, int | None]] = field(default_factory=list)  # input written
    drawn: Draw | None = None
    op: str = ""

    def __post_init__(self) -> None:
        self.build.device = self.device

    def at(self, op: str, loc: Loc | None) -> None:
        """The op that is lowered next, for messages and reports."""
        self.op, self.build.loc = op, loc

    def fail(self, message: str) -> DefinitionError:
        """An error that names the op and the user's line."""
        return DefinitionError(located(self.op, self.build.loc, message))

    def node(self, value: Value, dtype: DataType, *, scalar: bool = False) -> Node:
        """A tensor to keep; what a rule returns and holds across `equal` goes through here."""
        made = Node(value, dtype, scalar)
        self.nodes.append(made)
        return made

    def number(self, value: bool | int | float | complex | SymDim, dtype: DataType) -> Number:
        made = Number(value, dtype)
        self.nodes.append(made)
        return made

    # -- operands --------------------------------------------------------------------------------

    def operand(self, x: Given) -> Item:
        """A Node or Number from what a rule is given."""
        if isinstance(x, (Node, Number)):
            return x
        if isinstance(x, (bool, int, float, complex)):
            return Number(x, number_type(x))
        raise self.fail(f"{describe(x)} is neither tensor nor number")

    def tensor(self, x: Given, what: str = "the operand") -> Node:
        """A tensor; DefinitionError for a number."""
        if isinstance(x, Node) and not x.scalar:
            return x
        raise self.fail(f"{what} is {describe(x)}, where a tensor is needed")

    def dim(self, x: Given, what: str = "a size") -> Dim:
        """An integer as a size."""
        found = x.value if isinstance(x, Number) else x
        if isinstance(found, (int, SymDim)):
            return self.known(int(found) if isinstance(found, bool) else found)
        raise self.fail(f"{what} is {describe(x)}, where an integer is needed")

    def integer(self, x: Given, what: str) -> int:
        """An integer that the definition fixes."""
        found = self.dim(x, what)
        if isinstance(found, SymDim):
            raise self.fail(f"{what} must be a fixed integer")
        return found

    def dims(self, given: Lowered | Sequence[Given], what: str = "the shape") -> tuple[Dim, ...]:
        """A list or vector of sizes."""
        if not isinstance(given, (list, tuple)):
            raise self.fail(f"{what} is {describe(given)}, where a list is needed")
        return tuple(self.dim(x, f"an entry of {what}") for x in given)

    def axis(self, given: Given, rank: int, what: str = "dim") -> int:
        """A dimension, counted from the front."""
        k = self.integer(given, what)
        if not -max(rank, 1) <= k < max(rank, 1):
            raise self.fail(f"{what} {k} does not fit a tensor of rank {rank}")
        return k % max(rank, 1)

    def promoted(self, operands: Iterable[Item], *, to_float: bool = False) -> DataType:
        """The type an op of these operands computes in."""
        return promote([typed(x) for x in operands], to_float=to_float)

    def value_of(self, x: Item, dtype: DataType) -> Value:
        """A tensor of this type; a number becomes a 0-d one."""
        if isinstance(x, Node):
            return self.convert(x.value, x.dtype, dtype)
        if dtype.ir is DType.OTHER or isinstance(x.value, complex):
            text = f"{x.value!r}, dtype={dtype.torch}"
            return self.opaque("aten.scalar_tensor.default", text, (), (), dtype)
        return self.build.full((), Scalar(x.value), dtype.ir)

    def convert(self, value: Value, source: DataType, target: DataType) -> Value:
        """The value in another type, by PyTorch where the graph does not know one of them."""
        if source.torch == target.torch:
            return value
        if DType.OTHER not in (source.ir, target.ir):
            return self.build.convert(value, target.ir)
        text = f"$0, dtype={target.torch}"
        return self.opaque("aten._to_copy.default", text, (value,), value.shape, target)

    def copy(self, x: Node) -> Node:
        """A tensor of its own, equal to `x`."""
        if x.dtype.ir is DType.OTHER:
            value = self.opaque("aten.clone.default", "$0", (x.value,), x.shape, x.dtype)
            return self.node(value, x.dtype)
        return self.node(self.build.copy(x.value), x.dtype)

    # -- ops that PyTorch runs -------------------------------------------------------------------

    def opaque(
        self,
        target: str,
        args: str,
        operands: tuple[Value, ...],
        shape: tuple[Dim, ...],
        dtype: DataType,
        *,
        effect: bool = False,
    ) -> Value:
        """The result of PyTorch's own operator; `args` is text as the op table says."""
        attrs: dict[str, Attr] = {"target": target, "args": args}
        attrs |= {"shape": shape, "dtype": dtype.ir}
        if effect:
            attrs["effect"] = True
        (value,) = self._append(operands, [(shape, dtype)], attrs)
        return value

    def opaques(
        self,
        target: str,
        args: str,
        operands: tuple[Value, ...],
        results: Sequence[tuple[tuple[Dim, ...], DataType]],
        picks: tuple[int, ...],
    ) -> list[Value]:
        """The results at `picks` of PyTorch's own operator that returns several."""
        attrs: dict[str, Attr] = {"target": target, "args": args, "picks": picks}
        return self._append(operands, results, attrs)

    def _append(
        self,
        operands: tuple[Value, ...],
        results: Sequence[tuple[tuple[Dim, ...], DataType]],
        attrs: dict[str, Attr],
    ) -> list[Value]:
        values = []
        # what a seed is drawn from is in the CPU's memory
        device = "cpu" if str(attrs["target"]).startswith("tofuse.seed") else self.device
        for shape, dtype in results:
            values.append(Value(TensorType(shape, dtype.ir, device), f"v{self.build.count}"))
            self.build.count += 1
        op = Op("opaque", operands, tuple(values), tuple(attrs.items()), self.build.loc)
        self.build.ops.append(op)
        return values

    # -- sizes -----------------------------------------------------------------------------------

    def symbol(self, name: str, source: Source) -> Dim:
        """A size read from the arguments, or the number it is fixed to."""
        self.symbols[name] = source
        return self.sizes[name] if name in self.sizes else symbol(name)

    def derived(self, text: str) -> Dim:
        """A size that Python text over other symbols gives."""
        source = (f"expr:{text}", 0, 0)
        for name, held in self.symbols.items():
            if held == source:
                return symbol(name)
        return self.symbol(f"e{len(self.symbols)}", source)

    def equal(self, a: Dim, b: Dim, what: str) -> None:
        """Have two sizes equal from here on; checked when the program runs."""
        a, b = self.known(a), self.known(b)
        if a == b:
            return
        if isinstance(a, int) and isinstance(b, int):
            raise self.fail(f"{what}: {a} and {b} differ")
        self.guards.append(Guard(a, b, located(self.op, self.build.loc, what)))
        for x, y in ((b, a), (a, b)):
            if isinstance(x, SymDim) and (name := only_symbol(x)) and name not in symbols_of(y):
                self._substitute(Substitution(name, y))
                return
        self.pin([a, b])

    def known(self, dim: Dim) -> Dim:
        """A size after the substitutions so far."""
        for substitution in self.replaced:
            dim = substitution.dim(dim)
        return dim

    def pin(self, dims: Iterable[Dim]) -> None:
        """Ask for these sizes as numbers: the definition is then compiled for each of them."""
        names = [s for d in dims for s in symbols_of(self.known(d))]
        for name in names:  # grows while it is walked
            text = self.symbols[name][0]
            if text.startswith("expr:"):
                names += [w for w in WORD.findall(text) if w in self.symbols]
            else:
                self.pinned[name] = None

    def claim(self, value: Value, shape: tuple[Dim, ...], dtype: DataType) -> Value:
        """A reshape; through PyTorch where only a run can tell that the sizes fit."""
        if value.shape == shape:
            return value
        if product(value.shape) == product(shape):
            return self.build.reshape(value, shape)
        if not any(isinstance(d, SymDim) for d in (*value.shape, *shape)):
            raise self.fail(f"a tensor of shape {show(value.shape)} cannot have {show(shape)}")
        self.pin((*value.shape, *shape))
        text = f"$0, {show(shape)}"
        return self.opaque("aten.reshape.default", text, (value,), shape, dtype)

    def _substitute(self, substitution: Substitution) -> None:
        """Put a size for a symbol everywhere in the program so far."""
        self.replaced.append(substitution)
        self.build.ops[:] = map(substitution.op, self.build.ops)
        for item in self.nodes:
            if isinstance(item, Node):
                item.value = substitution.value(item.value)
            elif isinstance(item.value, SymDim):
                item.value = substitution.dim(item.value)
        self.positive = [(substitution.dim(d), message) for d, message in self.positive]
        held = self.build.constants
        self.build.constants = {substitution.value(v): s for v, s in held.items()}


def typed(x: Item) -> Typed:
    """What promotion looks at."""
    if isinstance(x, Number) or x.scalar:
        return Typed(x.dtype, 0)
    return Typed(x.dtype, 2 if x.rank else 1)


def located(op: str, loc: Loc | None, message: str) -> str:
    """A message with the op and the user's line."""
    where = f"\n  at {loc.file}:{loc.line}: {loc.code}" if loc else ""
    return f"{op}: {message}{where}"


def show(shape: Iterable[Dim]) -> str:
    return f"[{', '.join(map(show_dim, shape))}]"


def describe(x: object) -> str:
    """What a user gave, in words."""
    if isinstance(x, Node):
        return "a scalar input" if x.scalar else f"a tensor of rank {x.rank}"
    if isinstance(x, Number):
        return f"the scalar {x.value!r}"
    return f"{x!r} ({type(x).__name__})"


def only_symbol(dim: SymDim) -> str | None:
    """The name of a size that is one symbol and nothing else."""
    names = symbols_of(dim)
    return names[0] if len(names) == 1 and dim == symbol(names[0]) else None
