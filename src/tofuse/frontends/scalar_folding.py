"""Constant folding of ops on constants and sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from tofuse.frontends.datatypes import DataType
from tofuse.frontends.items import Item, Number
from tofuse.frontends.lowering import Lowering
from tofuse.ir.dims import Dim, SymDim, exact_div
from tofuse.ir.size_expression import SIZE_FUNCTIONS


def fold_scalars(low: Lowering, name: str, items: Sequence[Item], dtype: DataType) -> Number | None:
    """Fold an op whose operands are all constants or sizes; None if it cannot be folded."""
    numbers = [x.value for x in items if isinstance(x, Number)]
    if len(numbers) != len(items) or name not in FOLDS:
        return None
    if any(isinstance(x, SymDim) for x in numbers):
        dims = [int(x) if isinstance(x, bool) else x for x in numbers]
        sizes = [d for d in dims if isinstance(d, (int, SymDim))]
        folded = _fold_sizes(low, name, sizes) if len(sizes) == len(dims) else None
        return None if folded is None else Number(folded, DataType.Int)
    is_size = name in DERIVED and all(isinstance(x, int) for x in numbers)
    function = SIZE_FUNCTIONS[DERIVED[name]] if is_size else FOLDS[name]
    try:
        return Number(function(*numbers), dtype)
    except ZeroDivisionError:
        raise low.error("division by zero") from None
    except TypeError:
        return None


def _fold_sizes(low: Lowering, name: str, dims: Sequence[Dim]) -> Dim | None:
    if name in EXACT:
        return EXACT[name](*dims)
    if name == "div" and (quotient := exact_div(*dims)) is not None:
        return quotient
    if name in DERIVED:
        return low.derived_size(DERIVED[name], *dims)
    return None


EXACT: dict[str, Callable[..., Dim]] = {
    k: getattr(operator, k) for k in ("add", "sub", "mul", "neg")
}

DERIVED = {
    "div": "truncdiv",
    "mod": "truncmod",
    "fmod": "truncmod",
    "remainder": "%",
    "minimum": "min",
    "maximum": "max",
}

OPERATORS = ["add", "sub", "mul", "neg", "truediv", "eq", "ne", "lt", "le", "gt", "ge"]

FOLDS: dict[str, Callable[..., bool | int | float | complex]] = {
    **{k: getattr(operator, k) for k in OPERATORS},
    "abs": abs,
    "div": operator.truediv,  # of integers: as in DERIVED
    "mod": math.fmod,
    "fmod": math.fmod,
    "remainder": operator.mod,
    "minimum": min,
    "maximum": max,
    "logical_and": SIZE_FUNCTIONS["logical_and"],
    "logical_or": SIZE_FUNCTIONS["logical_or"],
    "logical_not": operator.not_,
}
