"""What the ops of a definition take and return while it is lowered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard, Union

from tofuse.frontends.datatypes import DataType
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.graph import Loc, Value


@dataclass(eq=False)
class Node:
    """A tensor of the definition, or (`scalar`) a number that is known only at run time."""

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
    """A constant, or an integer computed from sizes and integer inputs."""

    value: bool | int | float | complex | SymDim
    dtype: DataType


Item = Union[Node, Number]  # noqa: UP007  (evaluated at run time)
Lowered = Union[Node, Number, tuple[Item, ...], None]  # noqa: UP007  (None: a result left out)
Results = Union[Lowered, Sequence[Union[Node, None]]]  # noqa: UP007  (a list: several results)
Rule = Callable[..., Results]
OperandLike = Union[Node, Number, bool, int, float, complex]  # noqa: UP007
Shape = Lowered | Sequence[OperandLike]


@dataclass
class RngState:
    """Two seed words, and the number of random streams drawn from them so far."""

    seed: Node
    streams: int = 0


def is_scalar(x: Item) -> bool:
    """Whether an item is a number, known now or at run time."""
    return isinstance(x, Number) or x.scalar


def is_constant(x: Item) -> TypeGuard[Number]:
    """Whether an item is a real number that the definition determines."""
    return isinstance(x, Number) and not isinstance(x.value, (SymDim, complex))


def located(op: str, loc: Loc | None, message: str) -> str:
    """Return a message with the op's name and the user's line."""
    where = f"\n  at {loc.file}:{loc.line}: {loc.code}" if loc else ""
    return f"{op}: {message}{where}"


def show_shape(shape: Iterable[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def describe(x: object) -> str:
    """Describe a user's argument for an error message."""
    if isinstance(x, Node):
        return "a scalar input" if x.scalar else f"a tensor of rank {x.rank}"
    if isinstance(x, Number):
        return f"the scalar {x.value!r}"
    return f"{x!r} ({type(x).__name__})"
