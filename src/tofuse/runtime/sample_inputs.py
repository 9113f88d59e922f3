"""Make sample inputs for a graph, for measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tofuse.ir.dims import Dim, evaluate, size_hint
from tofuse.ir.graph import Value
from tofuse.ops.reference import TO_TORCH


def sample_tensors(
    values: Sequence[Value], sizes: Mapping[str, int], device: str = "cpu"
) -> list[torch.Tensor]:
    """Return a tensor for each value, of its shape, strides and dtype; unknown symbols are 64.

    Floats are normally distributed, drawn without use of torch's default generator. Integers are
    zero, because an index of zero is always in range.
    """
    generator = torch.Generator().manual_seed(0)
    return [_sample(v, sizes, generator).to(device) for v in values]


def _sample(v: Value, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
    shape = tuple(_size(d, sizes) for d in v.shape)
    strides = tuple(_size(d, sizes) for d in v.layout)
    span = 1 + sum(max(0, n - 1) * s for n, s in zip(shape, strides, strict=True))
    dtype = TO_TORCH[v.dtype]
    if v.dtype.is_float:
        flat = torch.randn(span, generator=generator).to(dtype)
    else:
        flat = torch.zeros(span, dtype=dtype)
    return flat.as_strided(shape, strides)


def _size(dim: Dim, sizes: Mapping[str, int]) -> int:
    return dim if isinstance(dim, int) else evaluate(dim, sizes) if sizes else size_hint(dim)
