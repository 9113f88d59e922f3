"""Numbers computed from sizes: expression trees, for all that no polynomial (`Dim`) expresses."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TypeGuard, Union

from tofuse.ir.dims import Dim, Symbol, SymDim, evaluate, product, symbols_of


@dataclass(frozen=True)
class SizeExpression:
    """A function of sizes and numbers, by its name or sign. Make it with `apply_function`."""

    function: str
    operands: tuple[SizeTerm, ...]

    @property
    def is_infix(self) -> bool:
        return not self.function.isidentifier()

    def __repr__(self) -> str:
        """Return the text: a Python expression over symbols and `SIZE_FUNCTIONS`."""
        if self.is_infix:
            return f" {self.function} ".join(map(_infix_operand, self.operands))
        return f"{self.function}({', '.join(map(repr, self.operands))})"


SizeTerm = Union[bool, int, float, SymDim, SizeExpression]  # noqa: UP007  (a run-time alias)


@dataclass(frozen=True)
class ArgumentSize:
    """A size read from argument number `argument` of a call.

    `kind` is "argument" for the argument itself, or "size" or "stride" of its dimension `dim`.
    """

    kind: str
    argument: int
    dim: int = 0


SizeSource = Union[ArgumentSize, SizeTerm]  # noqa: UP007


def apply_function(function: str, *operands: SizeTerm) -> SizeTerm:
    """Return the function of the operands; sums and products of sizes are polynomials."""
    if function in ("+", "*"):
        dims = [x for x in operands if is_dim(x)]
        if len(dims) == len(operands):
            return product(dims) if function == "*" else reduce(operator.add, dims)
    return SizeExpression(function, operands)


def is_dim(x: object) -> TypeGuard[Dim]:
    """Whether a term is an integer or a polynomial."""
    return isinstance(x, (int, SymDim)) and not isinstance(x, bool)


def evaluate_size(term: SizeTerm, sizes: Mapping[str, int]) -> bool | int | float:
    """Return the value of a term under a binding of its symbols."""
    match term:
        case SizeExpression():
            operands = (evaluate_size(x, sizes) for x in term.operands)
            return SIZE_FUNCTIONS[term.function](*operands)
        case SymDim():
            return evaluate(term, sizes)
        case _:
            return term


def size_symbols(term: SizeTerm) -> tuple[Symbol, ...]:
    """Return the symbols that a term reads, each once."""
    if isinstance(term, SizeExpression):
        return tuple(dict.fromkeys(s for x in term.operands for s in size_symbols(x)))
    return symbols_of(term) if isinstance(term, SymDim) else ()


def _infix_operand(x: SizeTerm) -> str:
    text = repr(x)
    is_call = isinstance(x, SizeExpression) and not x.is_infix
    is_atom = text.isidentifier() or text.replace(".", "", 1).isdigit()
    return text if is_call or is_atom else f"({text})"


def _slice_length(extent: int, start: int, end: int, step: int) -> int:
    return len(range(extent)[start:end:step])


def _trunc_div(a: int, b: int) -> int:
    """Divide integers as C does."""
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def _trunc_mod(a: int, b: int) -> int:
    return a - b * _trunc_div(a, b)


MATH = "floor ceil trunc sqrt exp log log2 cos cosh acos sin sinh asin tan tanh atan"

# Python's function for each name, and for each sign between two operands.
SIZE_FUNCTIONS: Mapping[str, Callable[..., bool | int | float]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "/": operator.truediv,
    "%": operator.mod,
    "**": operator.pow,
    "truncdiv": _trunc_div,
    "truncmod": _trunc_mod,
    "slice_length": _slice_length,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "logical_and": lambda *x: all(x),
    "logical_or": lambda *x: any(x),
    "logical_not": operator.not_,
    **{f.__name__: f for f in (max, min, abs, float, round)},
    **{name: getattr(operator, name) for name in ["lt", "le", "gt", "ge", "eq", "ne"]},
    **{name: getattr(math, name) for name in MATH.split()},
}
