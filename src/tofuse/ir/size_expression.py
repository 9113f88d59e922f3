"""Numbers computed from sizes: expression trees, for all that no polynomial (`Dim`) expresses."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import TypeGuard, Union

from tofuse.ir.dims import Dim, Symbol, SymDim, evaluate, product, show_dim, symbols_of


class SizeFunction(Enum):
    """A function of a size expression. The value is its name, or its sign between two operands."""

    ADD = "+"
    MUL = "*"
    FLOOR_DIV = "//"
    TRUE_DIV = "/"
    MOD = "%"
    POW = "**"
    TRUNC_DIV = "truncdiv"
    TRUNC_MOD = "truncmod"
    SLICE_LENGTH = "slice_length"
    BITWISE_AND = "bitwise_and"
    BITWISE_OR = "bitwise_or"
    BITWISE_XOR = "bitwise_xor"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    EQ = "eq"
    NE = "ne"
    AND = "logical_and"
    OR = "logical_or"
    NOT = "logical_not"
    MAX = "max"
    MIN = "min"
    ABS = "abs"
    FLOAT = "float"
    FLOOR = "floor"
    CEIL = "ceil"
    TRUNC = "trunc"
    ROUND = "round"
    SQRT = "sqrt"
    EXP = "exp"
    LOG = "log"
    LOG2 = "log2"
    COS = "cos"
    COSH = "cosh"
    ACOS = "acos"
    SIN = "sin"
    SINH = "sinh"
    ASIN = "asin"
    TAN = "tan"
    TANH = "tanh"
    ATAN = "atan"

    @property
    def is_infix(self) -> bool:
        return not self.value.isidentifier()


@dataclass(frozen=True)
class SizeExpression:
    """A function of sizes and numbers. Make it with `apply_function`."""

    function: SizeFunction
    operands: tuple[SizeTerm, ...]

    def __repr__(self) -> str:
        return show_size(self)


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


def apply_function(function: SizeFunction, *operands: SizeTerm) -> SizeTerm:
    """Return the function of the operands; sums and products of sizes are polynomials."""
    if function in (SizeFunction.ADD, SizeFunction.MUL):
        dims = [x for x in operands if is_dim(x)]
        if len(dims) == len(operands):
            return product(dims) if function is SizeFunction.MUL else reduce(operator.add, dims)
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


def show_size(term: SizeTerm) -> str:
    """Return the text of a term: a Python expression over symbols and `SIZE_FUNCTIONS`."""
    if isinstance(term, SizeExpression):
        if term.function.is_infix:
            return f" {term.function.value} ".join(map(_infix_operand, term.operands))
        return f"{term.function.value}({', '.join(map(show_size, term.operands))})"
    return show_dim(term) if isinstance(term, SymDim) else repr(term)


def _infix_operand(x: SizeTerm) -> str:
    text = show_size(x)
    is_call = isinstance(x, SizeExpression) and not x.function.is_infix
    is_atom = text.isidentifier() or text.replace(".", "", 1).isdigit()
    return text if is_call or is_atom else f"({text})"


def _slice_length(extent: int, start: int, end: int, step: int) -> int:
    return len(range(extent)[start:end:step])


def _trunc_div(a: int, b: int) -> int:
    """Divide integers as C does."""
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def _trunc_mod(a: int, b: int) -> int:
    return a - b * _trunc_div(a, b)


_PYTHON: dict[SizeFunction, Callable[..., bool | int | float]] = {
    SizeFunction.FLOOR_DIV: operator.floordiv,
    SizeFunction.TRUE_DIV: operator.truediv,
    SizeFunction.TRUNC_DIV: _trunc_div,
    SizeFunction.TRUNC_MOD: _trunc_mod,
    SizeFunction.SLICE_LENGTH: _slice_length,
    SizeFunction.BITWISE_AND: operator.and_,
    SizeFunction.BITWISE_OR: operator.or_,
    SizeFunction.BITWISE_XOR: operator.xor,
    SizeFunction.AND: lambda *x: all(x),
    SizeFunction.OR: lambda *x: any(x),
    SizeFunction.NOT: operator.not_,
}
_BY_NAME = vars(math) | vars(builtins) | vars(operator)
SIZE_FUNCTIONS = {f: _PYTHON.get(f) or _BY_NAME[f.name.lower()] for f in SizeFunction}
