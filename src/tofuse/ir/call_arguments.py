"""The arguments of a call of PyTorch's operator, as data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Union

from tofuse.ir.dims import Symbol, SymDim
from tofuse.ir.size_expression import SizeExpression, size_symbols


@dataclass(frozen=True)
class OperandRef:
    """A tensor argument in a graph: operand number `index` of the op."""

    index: int


@dataclass(frozen=True)
class TensorRef:
    """A tensor argument in a plan, by the tensor's name."""

    name: str


@dataclass(frozen=True)
class TorchConstant:
    """A dtype, layout or memory format: `torch.<name>`."""

    name: str


@dataclass(frozen=True)
class Device:
    """A device, such as `cuda:0`."""

    name: str


Reference = Union[OperandRef, TensorRef]  # noqa: UP007  (aliases evaluated at run time)
CallArgument = Union[  # noqa: UP007
    Reference, TorchConstant, Device, SymDim, SizeExpression,
    bool, int, float, complex, str, None, tuple["CallArgument", ...],
]  # fmt: skip


AFTER = "after"  # no operator has an argument of this name


@dataclass(frozen=True, eq=False)
class CallArguments:
    """Positional and keyword arguments. Equal ones are equal to the bit: 0.0 is not -0.0.

    `after` are tensors that the call depends on without getting them: it runs after they are
    computed, and until then their memory keeps their values.
    """

    positional: tuple[CallArgument, ...] = ()
    keyword: tuple[tuple[str, CallArgument], ...] = ()
    after: tuple[Reference, ...] = ()

    @cached_property
    def leaves(self) -> tuple[CallArgument, ...]:
        """The arguments and the elements of lists, in order."""
        return tuple(_leaves((*self.positional, *(a for _, a in self.keyword), *self.after)))

    @cached_property
    def operand_indices(self) -> tuple[int, ...]:
        """The operands of a graph's op, in order, with repeats."""
        return tuple(x.index for x in self.leaves if isinstance(x, OperandRef))

    @cached_property
    def tensor_names(self) -> tuple[str, ...]:
        """The tensors of a plan's call, in order, with repeats."""
        return tuple(x.name for x in self.leaves if isinstance(x, TensorRef))

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """The symbols of all sizes, each once."""
        terms = [x for x in self.leaves if isinstance(x, (SymDim, SizeExpression))]
        return tuple(dict.fromkeys(s for x in terms for s in size_symbols(x)))

    def map_leaves(self, function: Callable[[CallArgument], CallArgument]) -> CallArguments:
        """Return the arguments with `function` applied to all that are no lists."""
        keyword = tuple((k, _map_leaves(a, function)) for k, a in self.keyword)
        positional = tuple(_map_leaves(a, function) for a in self.positional)
        after = tuple(
            a for x in self.after if isinstance(a := function(x), (OperandRef, TensorRef))
        )
        return CallArguments(positional, keyword, after)

    def map_operands(self, reference: Callable[[int], Reference]) -> CallArguments:
        """Return the arguments of a graph's op with each operand replaced."""
        return self.map_leaves(lambda x: reference(x.index) if isinstance(x, OperandRef) else x)

    def renamed(self, old: str, new: str) -> CallArguments:
        """Return the arguments of a plan's call with another tensor for `old`."""
        return self.map_leaves(lambda x: TensorRef(new) if x == TensorRef(old) else x)

    @cached_property
    def _key(self) -> Hashable:
        keyword = tuple((k, exact_key(a)) for k, a in self.keyword)
        return exact_key(self.positional), keyword, self.after

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallArguments) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        """Return text such as `$0, None, [1, s0], dtype=torch.int64` for `parse_arguments`."""
        named = self.keyword + (((AFTER, self.after),) if self.after else ())
        parts = [show_argument(a) for a in self.positional]
        return ", ".join(parts + [f"{k}={show_argument(a)}" for k, a in named])


def show_argument(argument: CallArgument) -> str:
    """Return the text of one argument."""
    match argument:
        case tuple():
            return f"[{', '.join(map(show_argument, argument))}]"
        case OperandRef(index):
            return f"${index}"
        case TensorRef(name):
            return name
        case TorchConstant(name):
            return f"torch.{name}"
        case Device(name):
            return f"torch.device({name!r})"
        case complex():
            return f"complex({argument.real!r}, {argument.imag!r})"
        case _:
            return repr(argument)


def _leaves(arguments: tuple[CallArgument, ...]) -> Iterator[CallArgument]:
    for a in arguments:
        if isinstance(a, tuple):
            yield from _leaves(a)
        else:
            yield a


def _map_leaves(
    argument: CallArgument, function: Callable[[CallArgument], CallArgument]
) -> CallArgument:
    if isinstance(argument, tuple):
        return tuple(_map_leaves(a, function) for a in argument)
    return function(argument)


def exact_key(argument: Hashable) -> Hashable:
    """Return a key that separates 0.0 from -0.0 and 1 from True; nan equals itself."""
    if isinstance(argument, tuple):
        return tuple(map(exact_key, argument))
    if isinstance(argument, (bool, int, float, complex, SizeExpression)):
        return type(argument), show_argument(argument)
    return argument
