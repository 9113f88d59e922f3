"""Numbers outside of a dtype: some of ATen's operators raise an error, some wrap, some saturate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from tofuse.capture.lower.executor_claims import Decomposition, DecompositionResult
from tofuse.torch_internals.layouts import TypePromotion, elementwise_dtypes
from tofuse.torch_internals.operators import OpOverload, schema_of


def numbers_fit(
    op: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    dtype: torch.dtype | None = None,
) -> bool:
    """Return whether the numbers of a call are in the range of a dtype.

    It is that of the tensors if none is given, or that of a comparison's result.
    """
    numbers = list(_numbers(op, args, kwargs))
    if not numbers:
        return True
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    if tensors and dtype in (None, torch.bool):
        kind = TypePromotion.DEFAULT
        dtype = elementwise_dtypes(*tensors, type_promotion_kind=kind)[1]
    return dtype is None or all(_fits(x, dtype) for x in numbers)


def keep_if_out_of_range(op: OpOverload, rule: Decomposition) -> Decomposition:
    """Return a decomposition that keeps calls with numbers outside of the tensors' dtype."""
    if not any(_takes_number(str(a.type)) for a in schema_of(op).arguments):
        return rule

    def decompose(*args: object, **kwargs: object) -> DecompositionResult:
        dtype = kwargs.get("dtype")
        given = dtype if isinstance(dtype, torch.dtype) else None
        return rule(*args, **kwargs) if numbers_fit(op, args, kwargs, given) else NotImplemented

    return decompose


def _numbers(
    op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> Iterator[int | float | torch.SymInt]:
    """Yield the numbers that are given as scalars, or in place of tensors."""
    for k, argument in enumerate(schema_of(op).arguments):
        value = args[k] if k < len(args) else kwargs.get(argument.name)
        if _takes_number(str(argument.type)) and isinstance(value, (int, float, torch.SymInt)):
            yield value


def _takes_number(type_name: str) -> bool:
    return type_name in ("number", "Optional[number]", "Tensor", "Optional[Tensor]")


def _fits(number: int | float | torch.SymInt, dtype: torch.dtype) -> bool:
    """Return whether a number is in the range of a dtype; a symbol is taken for a tensor's size."""
    if isinstance(number, torch.SymInt):
        return dtype.itemsize >= 4 or dtype.is_floating_point
    if dtype is torch.bool or dtype.is_complex or isinstance(number, bool):
        return True
    if dtype.is_floating_point:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    return limits.min <= number <= limits.max
