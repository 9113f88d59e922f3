"""Symbolic sizes: the expressions behind them."""

from __future__ import annotations

import sympy  # type: ignore[import-untyped]  # it ships no types
from torch.fx.experimental.sym_node import SymNode

from tofuse.errors import CaptureError
from tofuse.torch_internals.private_names import has_attribute

_HAS_EXPRESSION = has_attribute(
    SymNode(sympy.Integer(1), None, int, 1), "_expr", "PyTorch runs programs with symbolic floats"
)


def free_symbols_of(node: SymNode) -> set[object]:
    """Return the symbols of a symbolic number, without adding a guard."""
    if not _HAS_EXPRESSION:
        raise CaptureError("symbolic floats are not supported by this release of torch")
    return set(node._expr.free_symbols)  # type: ignore[attr-defined]  # sympy has no types
