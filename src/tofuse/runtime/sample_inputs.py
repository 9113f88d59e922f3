"""Make sample inputs for a graph, for measurements."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tofuse.backends.cuda.runtime.cuda import empty_on
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Value
from tofuse.ops.reference import TO_TORCH

DISTINCT = 999_983  # random numbers of a tensor on a GPU, which repeat; no multiple of its rows


def sample_tensors(values: Sequence[Value]) -> list[torch.Tensor]:
    """Return a tensor for each value, of its dtype, device, and hints of its shape and strides.

    Floats are normally distributed, drawn without use of torch's default generators. Integers are
    zero, because an index of zero is always in range.
    """
    generator = torch.Generator().manual_seed(0)
    return [_sample(v, generator) for v in values]


def _sample(v: Value, generator: torch.Generator) -> torch.Tensor:
    shape, strides = tuple(map(size_hint, v.shape)), tuple(map(size_hint, v.layout))
    span = 1 + sum(max(0, n - 1) * s for n, s in zip(shape, strides, strict=True))
    dtype, on_cpu = TO_TORCH[v.dtype], v.type.on_host
    count = span if on_cpu else min(span, DISTINCT)
    if v.dtype.is_float:
        flat = torch.randn(count, generator=generator).to(dtype)
    else:
        flat = torch.zeros(count, dtype=dtype)
    if not on_cpu:
        flat = _repeated(flat, span, v.type.device)
    return flat.as_strided(shape, strides)


def _repeated(numbers: torch.Tensor, span: int, device: str) -> torch.Tensor:
    """Return a tensor of `span` elements on a GPU that repeats the numbers."""
    made = empty_on(device)((span,), (1,), numbers.dtype)
    made[: len(numbers)] = numbers
    filled = len(numbers)
    while filled < span:
        more = min(filled, span - filled)
        made[filled : filled + more] = made[:more]
        filled += more
    return made
