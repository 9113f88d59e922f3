"""Symbolic sizes: the expressions behind them."""

from __future__ import annotations

from torch.fx.experimental.sym_node import SymNode


def free_symbols_of(node: SymNode) -> set[object]:
    """Return the symbols of a symbolic number, without adding a guard."""
    return set(node._expr.free_symbols)  # type: ignore[attr-defined]  # sympy has no types
