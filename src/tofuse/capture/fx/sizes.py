"""Sizes at the border: torch's symbolic expressions as Dims, and where each symbol is read."""

from __future__ import annotations

import re
from typing import Union

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch.utils._sympy.printers import PythonPrinter

from tofuse.errors import CaptureError
from tofuse.ir.dims import Dim, SymDim, contiguous_strides, product, symbol

Source = tuple[str, int, int]
Sized = Union[int, torch.SymInt]  # noqa: UP007  (evaluated at run time)
UNKNOWN = 4096  # stands for a size without a hint


def at_first_call(size: Sized, unknown: int = UNKNOWN) -> int:
    """A size, or its value at the first call; no guard is made."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return unknown if hint is None else int(hint)


class Sizes:
    """Every size of one FX graph as a polynomial over symbols with known sources.

    What is no polynomial (`s0 // 2`) becomes a symbol of its own, whose source is the text of a
    Python expression over the others: `("expr:s0 // 2", 0, 0)`. Such a symbol may be 0 or 1.
    What a symbol is at the first call is its guess.
    """

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self._guesses: dict[sympy.Symbol, int] = {}
        self._derived: dict[sympy.Expr, SymDim] = {}
        self._composite: list[tuple[sympy.Expr, Source, int | None]] = []

    def learn_argument(self, index: int, value: torch.SymInt) -> None:
        """Note that the flat argument `index` is an integer of this value."""
        self._learn(value, ("argument", index, 0))

    def learn_tensor(self, index: int, tensor: torch.Tensor) -> None:
        """Note that the flat argument `index` is a tensor of these sizes and strides."""
        for dim, extent in enumerate(tensor.shape):
            self._learn(extent, ("size", index, dim))
        for dim, stride in enumerate(tensor.stride()):
            self._learn(stride, ("stride", index, dim))

    def solve(self) -> None:
        """Find symbols that occur only inside expressions, such as `s0` in an extent `2*s0 + 1`."""
        for expr, source, guess in self._composite:
            unknown = [s for s in expr.free_symbols if s.name not in self.sources]
            if len(unknown) != 1 or not expr.is_polynomial(unknown[0]):
                continue
            coefficients = sympy.Poly(expr, unknown[0]).all_coeffs()
            if len(coefficients) == 2 and all(c.is_Integer for c in coefficients):
                factor, rest = map(int, coefficients)
                whole = self._fresh(source)
                self.sources[unknown[0].name] = (f"expr:({whole} - {rest}) // {factor}", 0, 0)
                if guess is not None:
                    self._guesses[unknown[0]] = (guess - rest) // factor

    def dim(self, value: Sized) -> Dim:
        """A size as a Dim; CaptureError where nothing at run time tells its symbols."""
        return value if isinstance(value, int) else self._walk(_expression(value))

    def shape(self, values: torch.Size | tuple[Sized, ...]) -> tuple[Dim, ...]:
        return tuple(self.dim(v) for v in values)

    def layout(self, tensor: torch.Tensor) -> tuple[Dim, ...] | None:
        """A tensor's strides; None where it is row-major, whatever its extents of 1 claim."""
        shape = self.shape(tensor.shape)
        strides = tuple(self.dim(s) for s in tensor.stride())
        if 0 in shape:
            return None
        usual = contiguous_strides(shape)
        pairs = list(zip(shape, strides, usual, strict=True))
        if all(extent == 1 or s == u for extent, s, u in pairs):
            return None
        return tuple(u if extent == 1 else s for extent, s, u in pairs)

    def text(self, value: torch.SymInt | torch.SymFloat | torch.SymBool) -> str:
        """Python text of a number that sizes determine, e.g. `torch.sym_float(s0) / 2`."""
        return self._print(_expression(value))

    def _learn(self, value: Sized, source: Source) -> None:
        if isinstance(value, int):
            return
        expr, hint = _expression(value), value.node.hint
        guess = hint if isinstance(hint, int) else None  # a ragged size has another
        if not isinstance(expr, sympy.Symbol):
            self._composite.append((expr, source, guess))
            return
        self.sources.setdefault(expr.name, source)
        if guess is not None:
            self._guesses.setdefault(expr, guess)

    def _walk(self, expr: sympy.Expr) -> Dim:
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if isinstance(expr, sympy.Symbol):
            self._check(expr)
            return symbol(expr.name, self._guesses.get(expr))
        if isinstance(expr, sympy.Add):
            total: Dim = 0
            for term in expr.args:
                total = self._walk(term) + total
            return total
        if isinstance(expr, sympy.Mul):
            return product(self._walk(factor) for factor in expr.args)
        if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
            return product([self._walk(expr.base)] * int(expr.exp))
        if expr not in self._derived:
            name = self._fresh((f"expr:{self._print(expr)}", 0, 0))
            guess = expr.subs(self._guesses)
            self._derived[expr] = symbol(name, int(guess) if guess.is_Integer else None)
        return self._derived[expr]

    def _print(self, expr: sympy.Expr) -> str:
        for s in sorted(expr.free_symbols, key=str):
            self._check(s)
        text = PythonPrinter().doprint(expr)
        return re.sub(r"\bmath\.", "torch.math.", text)

    def _check(self, symbol: sympy.Symbol) -> None:
        if symbol.name not in self.sources:
            raise CaptureError(
                f"the size {symbol} depends on data, or on nothing the program is given"
            )

    def _fresh(self, source: Source) -> str:
        name = f"e{sum(s.startswith('e') for s in self.sources)}"
        self.sources[name] = source
        return name


def _expression(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Expr:
    expr = getattr(value.node, "expr", None)  # a ragged size of a nested tensor has none
    if not isinstance(expr, sympy.Basic):
        raise CaptureError(f"the size {value} of a nested tensor is not supported")
    return expr
