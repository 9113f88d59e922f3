"""The conversion of torch's symbolic sizes to Dims, and the source of each symbol."""

from __future__ import annotations

import re
from typing import Union

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch

from tofuse.cost.thresholds import UNKNOWN_SIZE
from tofuse.errors import CaptureError
from tofuse.ir.dims import Dim, SymDim, contiguous_strides, product, symbol
from tofuse.torch_internals.symbolic_sizes import PythonPrinter

Source = tuple[str, int, int]  # of a symbol: such as ("size", argument index, dimension)
IntLike = Union[int, torch.SymInt]  # noqa: UP007  (evaluated at run time)


def size_hint(size: IntLike, default: int = UNKNOWN_SIZE) -> int:
    """Return a size's value at the first call, without adding a guard."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return default if hint is None else int(hint)


class SymbolicSizes:
    """The sizes of one FX graph as polynomials over symbols with known sources.

    An expression that is no polynomial (`s0 // 2`) becomes a new symbol. Its source is the text
    of a Python expression over other symbols: `("expr:s0 // 2", 0, 0)`. It may be 0 or 1.
    """

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self._hints: dict[sympy.Symbol, int] = {}
        self._derived: dict[sympy.Expr, SymDim] = {}
        self._composite: list[tuple[sympy.Expr, Source, int | None]] = []

    def add_argument(self, index: int, value: torch.SymInt) -> None:
        """Record an integer argument, by its index among the flat arguments."""
        self._record(value, ("argument", index, 0))

    def add_tensor(self, index: int, tensor: torch.Tensor) -> None:
        """Record the sizes and strides of a tensor argument, by its index."""
        for dim, extent in enumerate(tensor.shape):
            self._record(extent, ("size", index, dim))
        for dim, stride in enumerate(tensor.stride()):
            self._record(stride, ("stride", index, dim))

    def solve(self) -> None:
        """Give sources to symbols that occur only in linear expressions, such as `2*s0 + 1`."""
        for expr, source, hint in self._composite:
            unsolved = [s for s in expr.free_symbols if s.name not in self.sources]
            if len(unsolved) != 1 or not expr.is_polynomial(unsolved[0]):
                continue
            coefficients = sympy.Poly(expr, unsolved[0]).all_coeffs()
            if len(coefficients) == 2 and all(c.is_Integer for c in coefficients):
                factor, offset = map(int, coefficients)
                total = self._new_symbol(source)
                self.sources[unsolved[0].name] = (f"expr:({total} - {offset}) // {factor}", 0, 0)
                if hint is not None:
                    self._hints[unsolved[0]] = (hint - offset) // factor

    def dim(self, value: IntLike) -> Dim:
        """Return a size as a Dim; CaptureError if a symbol has no source at run time."""
        return value if isinstance(value, int) else self._to_dim(_expression(value))

    def shape(self, values: torch.Size | tuple[IntLike, ...]) -> tuple[Dim, ...]:
        """Return sizes as Dims."""
        return tuple(self.dim(v) for v in values)

    def layout(self, tensor: torch.Tensor) -> tuple[Dim, ...] | None:
        """Return a tensor's strides; None if it is row-major apart from extents of 1."""
        shape = self.shape(tensor.shape)
        strides = tuple(self.dim(s) for s in tensor.stride())
        if 0 in shape:
            return None
        row_major = contiguous_strides(shape)
        triples = list(zip(shape, strides, row_major, strict=True))
        if all(extent == 1 or s == r for extent, s, r in triples):
            return None
        return tuple(r if extent == 1 else s for extent, s, r in triples)

    def expression_text(self, value: torch.SymInt | torch.SymFloat | torch.SymBool) -> str:
        """Return Python text of a number over symbols, such as `torch.sym_float(s0) / 2`."""
        return self._print(_expression(value))

    def _record(self, value: IntLike, source: Source) -> None:
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
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if isinstance(expr, sympy.Symbol):
            self._require_source(expr)
            return symbol(expr.name, self._hints.get(expr))
        if isinstance(expr, sympy.Add):
            total: Dim = 0
            for term in expr.args:
                total = self._to_dim(term) + total
            return total
        if isinstance(expr, sympy.Mul):
            return product(self._to_dim(factor) for factor in expr.args)
        if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
            return product([self._to_dim(expr.base)] * int(expr.exp))
        if expr not in self._derived:
            name = self._new_symbol((f"expr:{self._print(expr)}", 0, 0))
            hint = expr.subs(self._hints)
            self._derived[expr] = symbol(name, int(hint) if hint.is_Integer else None)
        return self._derived[expr]

    def _print(self, expr: sympy.Expr) -> str:
        for s in sorted(expr.free_symbols, key=str):
            self._require_source(s)
        text = PythonPrinter().doprint(expr)
        return re.sub(r"\bmath\.", "torch.math.", text)

    def _require_source(self, symbol: sympy.Symbol) -> None:
        if symbol.name not in self.sources:
            raise CaptureError(
                f"the size {symbol} depends on data or on no argument of the program"
            )

    def _new_symbol(self, source: Source) -> str:
        name = f"e{sum(s.startswith('e') for s in self.sources)}"
        self.sources[name] = source
        return name


def _expression(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Expr:
    expr = getattr(value.node, "expr", None)  # None for a ragged size of a nested tensor
    if not isinstance(expr, sympy.Basic):
        raise CaptureError(f"the size {value} of a nested tensor is not supported")
    return expr
