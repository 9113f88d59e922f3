"""The reference of ops whose index selects elements: gathers and scatters."""

from __future__ import annotations

import torch
from torch import Tensor


def take(x: Tensor, index: Tensor, dims: tuple[int, ...], wrap: bool) -> Tensor:
    """Return the elements of `x` that an index selects; see `take` in `ops/table.py`."""
    extent = x.shape[dims.index(-1)]
    index = checked_index(index, extent, wrap)
    picks = []
    for k, d in enumerate(dims):
        if d == -1:
            picks.append(index)
        else:
            line = torch.arange(x.shape[k])
            picks.append(line.reshape([-1 if i == d else 1 for i in range(index.dim())]))
    return x[tuple(picks)]


def scatter_reduce(
    x: Tensor,
    index: Tensor,
    dim: int,
    reduce: str,
    start: float,
    shape: tuple[int, ...],
    wrap: bool,
) -> Tensor:
    """Return the combinations of the values of `x`; see `scatter_reduce` in `ops/table.py`."""
    index = checked_index(index, shape[dim], wrap)
    result = torch.full(shape, start, dtype=x.dtype)
    strides = result.stride()
    at = index * strides[dim]
    for d, extent in enumerate(x.shape):
        if d != dim:
            lines = torch.arange(extent).reshape([-1 if k == d else 1 for k in range(x.dim())])
            at = at + lines * strides[d]
    scatter_elements(result.reshape(-1), at.reshape(-1), x.reshape(-1), reduce)
    return result


def scatter_elements(flat: Tensor, at: Tensor, values: Tensor, reduce: str) -> None:
    """Combine values with the elements of a flat tensor at positions, one after another."""
    if reduce == "sum":
        flat.index_add_(0, at, values)
    elif reduce == "any":
        flat[at[values]] = True
    else:
        flat.scatter_reduce_(0, at, values, reduce)


def checked_index(index: Tensor, extent: int, wrap: bool) -> Tensor:
    """Return the index as int64, from 0 on; raise IndexError if it is out of range."""
    low = -extent if wrap else 0
    if index.numel() and not (low <= int(index.min()) and int(index.max()) < extent):
        raise IndexError(f"index out of range for an extent of {extent}")
    return torch.where(index < 0, index + extent, index).to(torch.int64)
