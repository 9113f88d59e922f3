"""Decompositions of reflection and replication padding to concats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from tofuse.capture.lower.executor_claims import Decomposition
from tofuse.torch_internals.operators import OpOverload

aten = torch.ops.aten
SidePadding = Callable[[Tensor, int, int, bool], Tensor]  # tensor, dimension, amount, is low side


def _padded_sides(x: Tensor, padding: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (dimension, amount before, amount after) from the last dimension on."""
    for k in range(len(padding) // 2):
        yield x.dim() - 1 - k, padding[2 * k], padding[2 * k + 1]


def _is_supported(x: Tensor, padding: Sequence[int], excluded: int) -> bool:
    """Whether all sizes are static and valid; the `excluded` edge elements are not reflected."""
    sizes = (*x.shape, *padding)
    if not all(isinstance(n, int) for n in sizes) or 0 in x.shape or min(padding, default=0) < 0:
        return False
    return not excluded or all(max(a, b) < x.shape[d] for d, a, b in _padded_sides(x, padding))


def _reflected_side(x: Tensor, dim: int, amount: int, low: bool) -> Tensor:
    """Return the elements that a reflection adds on one side; the edge is not repeated."""
    start = 1 if low else x.shape[dim] - 1 - amount
    return x.narrow(dim, start, amount).flip(dim)


def _replicated_side(x: Tensor, dim: int, amount: int, low: bool) -> Tensor:
    sizes = [-1] * x.dim()
    sizes[dim] = amount
    return x.narrow(dim, 0 if low else x.shape[dim] - 1, 1).expand(sizes)


def _pad_by_concat(side: SidePadding, excluded: int) -> Decomposition:
    """Return the decomposition of a padding to concats of its sides."""

    def padded(x: Tensor, padding: Sequence[int]) -> Tensor:
        if not _is_supported(x, padding, excluded):
            return NotImplemented
        result = x
        for dim, before, after in _padded_sides(x, padding):
            low = [side(result, dim, before, True)] if before else []
            high = [side(result, dim, after, False)] if after else []
            result = torch.cat((*low, result, *high), dim)
        return result

    return padded


def _pad_gradient(side_gradient: Callable[[Tensor, int], Tensor], excluded: int) -> Decomposition:
    """Return the gradient's decomposition: add each side's gradient to the repeated elements.

    `side_gradient` maps the gradient of a padded side along a dimension to that of the elements.
    """

    def gradient(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
        if not _is_supported(x, padding, excluded):
            return NotImplemented
        for dim, before, after in reversed([*_padded_sides(x, padding)]):
            extent = x.shape[dim]
            total = grad.narrow(dim, before, extent)
            if before:
                side = side_gradient(grad.narrow(dim, 0, before), dim)
                total = total + _pad_with_zeros(side, dim, excluded, extent)
            if after:
                side = side_gradient(grad.narrow(dim, before + extent, after), dim)
                start = extent - excluded - side.shape[dim]
                total = total + _pad_with_zeros(side, dim, start, extent)
            grad = total
        return grad

    return gradient


def _pad_with_zeros(side: Tensor, dim: int, start: int, extent: int) -> Tensor:
    """Pad one side's gradient with zeros to an extent."""
    amounts = [0, 0] * (side.dim() - 1 - dim) + [start, extent - start - side.shape[dim]]
    return pad(side, amounts)


RULES_OF_RANK: dict[str, Decomposition] = {
    "reflection_pad{}d": _pad_by_concat(_reflected_side, 1),
    "reflection_pad{}d_backward": _pad_gradient(lambda g, dim: g.flip(dim), 1),
    "replication_pad{}d": _pad_by_concat(_replicated_side, 0),
    "replication_pad{}d_backward": _pad_gradient(lambda g, dim: g.sum(dim, keepdim=True), 0),
}
PADDING_DECOMPOSITIONS: dict[OpOverload, Decomposition] = {
    getattr(aten, name.format(rank)).default: rule
    for name, rule in RULES_OF_RANK.items()
    for rank in (1, 2, 3)
}
