"""Make sample inputs for a graph, for measurements."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Value
from tofuse.ops.reference import TO_TORCH


def sample_tensors(values: Sequence[Value]) -> list[torch.Tensor]:
    """Return a CPU tensor for each value, of its dtype, and of the hints of its shape and strides.

    Floats are normally distributed, drawn without use of torch's default generator. Integers are
    zero, because an index of zero is always in range.
    """
    generator = torch.Generator().manual_seed(0)
    return [_sample(v, generator) for v in values]


def _sample(v: Value, generator: torch.Generator) -> torch.Tensor:
    shape, strides = tuple(map(size_hint, v.shape)), tuple(map(size_hint, v.layout))
    span = 1 + sum(max(0, n - 1) * s for n, s in zip(shape, strides, strict=True))
    dtype = TO_TORCH[v.dtype]
    if v.dtype.is_float:
        flat = torch.randn(span, generator=generator).to(dtype)
    else:
        flat = torch.zeros(span, dtype=dtype)
    return flat.as_strided(shape, strides)
