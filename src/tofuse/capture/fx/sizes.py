"""The conversion of torch's symbolic sizes to Dims, and the source of each symbol."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial, reduce
from typing import Union

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from sympy.logic.boolalg import BooleanFalse, BooleanTrue  # type: ignore[import-untyped]

from tofuse.cost.thresholds import UNKNOWN_SIZE
from tofuse.errors import CaptureError
from tofuse.ir.dims import (
    Dim,
    SymDim,
    contiguous_strides,
    equal_strides,
    exact_div,
    product,
    symbol,
)
from tofuse.ir.size_expression import (
    SIZE_FUNCTIONS,
    ArgumentSize,
    SizeSource,
    SizeTerm,
    apply_function,
    is_dim,
)

IntLike = Union[int, torch.SymInt]  # noqa: UP007  (evaluated at run time)
Number = Union[bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool]  # noqa: UP007

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def size_hint(size: IntLike, default: int = UNKNOWN_SIZE) -> int:
    """Return a size's value at the first call, without adding a guard."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return default if hint is None else int(hint)


def number_symbols(number: Number) -> frozenset[sympy.Symbol]:
    """Return the symbols of a number; none of a ragged size of a nested tensor."""
    if isinstance(number, (bool, int, float)):
        return frozenset()
    expr = getattr(number.node, "expr", None)
    return frozenset(expr.free_symbols) if isinstance(expr, sympy.Basic) else frozenset()


class SymbolicSizes:
    """The sizes of one FX graph as polynomials over symbols with known sources.

    An expression that is no polynomial (`s0 // 2`) becomes a new symbol. Its source is the
    expression over other symbols. It may be 0 or 1. `keep_unit_strides`: strides of extents of 1
    are kept, which callers see. Gradients should have those of parameters, which are row-major.
    """

    def __init__(self, *, keep_unit_strides: bool = True) -> None:
        self.keep_unit_strides = keep_unit_strides
        self.sources: dict[str, SizeSource] = {}
        self._hints: dict[sympy.Symbol, int] = {}
        self._derived: dict[sympy.Expr, SymDim] = {}
        self._extents: dict[torch.UntypedStorage, set[sympy.Expr]] = {}  # of tensors in a storage
        self._composite: list[tuple[sympy.Expr, ArgumentSize, int | None]] = []

    def add_argument(self, index: int, value: torch.SymInt | torch.SymFloat) -> None:
        """Record a number, by its index among the flat arguments."""
        self._record(value, ArgumentSize("argument", index))

    def add_tensor(self, index: int, tensor: torch.Tensor) -> None:
        """Record the sizes and strides of a tensor argument, by its index."""
        for dim, extent in enumerate(tensor.shape):
            self._record(extent, ArgumentSize("size", index, dim))
        for dim, stride in enumerate(tensor.stride()):
            self._record(stride, ArgumentSize("stride", index, dim))

    def solve(self) -> None:
        """Give sources to symbols that occur only in linear expressions, such as `2*s0 + 1`."""
        for expr, source, hint in self._composite:
            unsolved = [s for s in expr.free_symbols if s.name not in self.sources]
            if len(unsolved) != 1 or not expr.is_polynomial(unsolved[0]):
                continue
            coefficients = sympy.Poly(expr, unsolved[0]).all_coeffs()
            if len(coefficients) == 2 and all(c.is_Integer for c in coefficients):
                factor, offset = map(int, coefficients)
                scaled = symbol(self._new_symbol(source)) - offset
                solution = apply_function("//", scaled, factor)
                self.sources[unsolved[0].name] = solution
                if hint is not None:
                    self._hints[unsolved[0]] = (hint - offset) // factor

    def dim(self, value: IntLike) -> Dim:
        """Return a size as a Dim; CaptureError if a symbol has no source at run time."""
        return value if isinstance(value, int) else self._to_dim(_expression(value))

    def shape(self, values: torch.Size | tuple[IntLike, ...]) -> tuple[Dim, ...]:
        """Return sizes as Dims."""
        return tuple(self.dim(v) for v in values)

    def layout(self, tensor: torch.Tensor) -> tuple[Dim, ...] | None:
        """Return a tensor's strides; None if it is row-major.

        So is an empty tensor that has stride 0 along an extent of 0: outside of the loop over it,
        a kernel would write an element.
        """
        shape = self.shape(tensor.shape)
        row_major = contiguous_strides(shape)
        if any(n == 0 == stride for n, stride in zip(shape, tensor.stride(), strict=True)):
            return None
        extents = self._extents.setdefault(tensor.untyped_storage(), set())
        sizes: tuple[IntLike, ...] = tuple(tensor.shape)
        extents |= {_expression(n) for n in sizes if not isinstance(n, int)}
        strides = tuple(self._stride(s, extents) for s in tensor.stride())
        if self.keep_unit_strides:
            return None if strides == row_major else strides
        return None if 0 in shape or equal_strides(strides, row_major, shape) else strides

    def _stride(self, stride: IntLike, extents: Collection[sympy.Expr]) -> Dim:
        """Return a stride, with n for torch's `max(1, n)` if n is one of the extents.

        Where they differ, the tensor is empty, and so are its views.
        """
        if isinstance(stride, int):
            return stride
        expr = _expression(stride)
        for part in list(sympy.preorder_traversal(expr)):
            rest = set(part.args) - {1}
            if part.func.__name__ == "Max" and len(rest) == 1 and rest <= set(extents):
                expr = expr.subs(part, *rest)
        return self._to_dim(expr)

    def term(self, value: torch.SymInt | torch.SymFloat | torch.SymBool) -> SizeTerm:
        """Return a number as an expression over symbols, such as `float(s0) / 2`."""
        return self.expression(_expression(value))

    def _record(self, value: IntLike | torch.SymFloat, source: ArgumentSize) -> None:
        if isinstance(value, int):
            return
        expr, hint = _expression(value), value.node.hint
        hint = hint if isinstance(hint, int) else None  # a ragged size has another type
        if not isinstance(expr, sympy.Symbol):
            self._composite.append((expr, source, hint))
            return
        self.sources.setdefault(expr.name, source)
        if hint is not None:
            self._hints.setdefault(expr, hint)

    def _to_dim(self, expr: sympy.Expr) -> Dim:
        """Convert an expression; each part that is no polynomial becomes a new symbol."""
        is_power = isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0
        if is_power or isinstance(expr, (sympy.Integer, sympy.Symbol, sympy.Add, sympy.Mul)):
            term = self.expression(expr, self._to_dim)
            assert is_dim(term)
            return term
        if expr.func.__name__ in ("FloorDiv", "CleanDiv"):
            quotient = exact_div(*map(self._to_dim, expr.args))
            if quotient is not None:
                return quotient
        if expr not in self._derived:
            name = self._new_symbol(self.expression(expr))
            hint = expr.subs(self._hints)
            self._derived[expr] = symbol(name, int(hint) if hint.is_Integer else None)
        return self._derived[expr]

    def expression(
        self, expr: sympy.Basic, to_operand: Callable[[sympy.Basic], SizeTerm] | None = None
    ) -> SizeTerm:
        """Convert an expression, by default without new symbols for its parts."""
        name = expr.func.__name__.removeprefix("OpaqueUnaryFn_").removeprefix("BitwiseFn_")
        operands = tuple(map(to_operand or self.expression, expr.args))
        match expr:
            case sympy.Symbol(is_integer=True):
                return self._symbol(expr)
            case sympy.Symbol():  # a float: never a size
                return apply_function("float", self._symbol(expr))
            case sympy.Number():
                return int(expr) if isinstance(expr, sympy.Integer) else float(expr)
            case BooleanTrue() | BooleanFalse():
                return bool(expr)
            case sympy.Add() | sympy.Mul():
                function = "+" if isinstance(expr, sympy.Add) else "*"
                return reduce(partial(apply_function, function), operands)
        match name, *operands:
            case "Pow", base, int(exponent) if is_dim(base) and exponent > 0:
                return product([base] * exponent)
            case "Identity", x:
                return x
            case "ModularIndexing", x, divisor, modulus:
                quotient = apply_function("//", x, divisor)
                return apply_function("%", quotient, modulus)
        if name not in FUNCTIONS:
            raise CaptureError(f"the size {expr} is not supported")
        return apply_function(FUNCTIONS[name], *operands)

    def _symbol(self, s: sympy.Symbol) -> SymDim:
        if s.name not in self.sources:
            raise CaptureError(f"the size {s} depends on data or on no argument of the program")
        return symbol(s.name, self._hints.get(s))

    def _new_symbol(self, source: SizeSource) -> str:
        name = f"e{sum(s.startswith('e') for s in self.sources)}"
        self.sources[name] = source
        return name


def _expression(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Expr:
    expr = getattr(value.node, "expr", None)  # None for a ragged size of a nested tensor
    if not isinstance(expr, sympy.Basic):
        raise CaptureError(f"the size {value} of a nested tensor is not supported")
    return expr


# Sympy's and torch's functions of sizes, by the names of their classes.
FUNCTIONS = {
    **dict.fromkeys(("Pow", "PowByNatural", "FloatPow"), "**"),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), "//"),
    **dict.fromkeys(("IntTrueDiv", "FloatTrueDiv"), "/"),
    **dict.fromkeys(("Mod", "PythonMod"), "%"),
    "StrictLessThan": "lt",
    "LessThan": "le",
    "StrictGreaterThan": "gt",
    "GreaterThan": "ge",
    "Equality": "eq",
    "Unequality": "ne",
    "And": "logical_and",
    "Or": "logical_or",
    "Not": "logical_not",
    "Max": "max",
    "Min": "min",
    "Abs": "abs",
    "ToFloat": "float",
    "FloorToInt": "floor",
    "ceiling": "ceil",
    "CeilToInt": "ceil",
    "TruncToInt": "trunc",
    "RoundToInt": "round",
    "RoundDecimal": "round",
    **{name: name for name in SIZE_FUNCTIONS if name.isidentifier()},  # sqrt, bitwise_and
}
