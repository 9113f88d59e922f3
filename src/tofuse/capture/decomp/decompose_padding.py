"""Paddings by what is there already, a reflection or the edge, as pieces joined side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch.nn.functional import pad

from tofuse.capture.lower.executor_claims import Decomposition

aten = torch.ops.aten
Piece = Callable[
    [Tensor, int, int, bool], Tensor
]  # of a tensor, a dimension, how much, whether low


def _sides(x: Tensor, padding: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Dimension by dimension, from the last one, what comes before and behind."""
    for k in range(len(padding) // 2):
        yield x.dim() - 1 - k, padding[2 * k], padding[2 * k + 1]


def _known(x: Tensor, padding: Sequence[int], spare: int) -> bool:
    """Whether all sizes are, and fit; `spare` elements are not reflected. Others are ATen's."""
    sizes = (*x.shape, *padding)
    if not all(isinstance(n, int) for n in sizes) or 0 in x.shape:
        return False
    sides = [*_sides(x, padding)]
    if min(padding, default=0) < 0:
        return False
    return not spare or all(max(a, b) < x.shape[d] for d, a, b in sides)


def _mirrored(x: Tensor, dim: int, amount: int, low: bool) -> Tensor:
    """What a reflection puts on one side: without the edge itself."""
    start = 1 if low else x.shape[dim] - 1 - amount
    return x.narrow(dim, start, amount).flip(dim)


def _edge(x: Tensor, dim: int, amount: int, low: bool) -> Tensor:
    wide = [-1] * x.dim()
    wide[dim] = amount
    return x.narrow(dim, 0 if low else x.shape[dim] - 1, 1).expand(wide)


def _mirrored_back(g: Tensor, dim: int, amount: int, low: bool) -> Tensor:
    """The gradient of a padded tensor's side, at the elements it comes from."""
    return g.narrow(dim, 0 if low else g.shape[dim] - amount, amount).flip(dim)


def _edge_back(g: Tensor, dim: int, amount: int, low: bool) -> Tensor:
    return g.narrow(dim, 0 if low else g.shape[dim] - amount, amount).sum(dim, keepdim=True)


def _joined(piece: Piece, spare: int) -> Decomposition:
    def padded(x: Tensor, padding: Sequence[int]) -> Tensor:
        if not _known(x, padding, spare):
            return NotImplemented
        made = x
        for dim, before, behind in _sides(x, padding):
            low = [piece(made, dim, before, True)] if before else []
            high = [piece(made, dim, behind, False)] if behind else []
            made = torch.cat((*low, made, *high), dim)
        return made.contiguous(memory_format=suggest_memory_format(x))

    return padded


def _added(back: Piece, spare: int) -> Decomposition:
    """The gradient: of each side, added where its elements come from."""

    def gradient(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
        if not _known(x, padding, spare):
            return NotImplemented
        for dim, before, behind in reversed([*_sides(x, padding)]):
            extent = x.shape[dim]
            found = grad.narrow(dim, before, extent)
            if before:
                found = found + _placed(back(grad, dim, before, True), dim, spare, extent)
            if behind:
                side = back(grad, dim, behind, False)
                start = extent - spare - side.shape[dim]
                found = found + _placed(side, dim, start, extent)
            grad = found
        return grad.contiguous(memory_format=suggest_memory_format(x))

    return gradient


def _placed(piece: Tensor, dim: int, start: int, extent: int) -> Tensor:
    """Zeros but for a piece."""
    amounts = [0, 0] * (piece.dim() - 1 - dim) + [start, extent - start - piece.shape[dim]]
    return pad(piece, amounts)


PADDING: dict[OpOverload, Decomposition] = {}
for _rank in (1, 2, 3):
    for _name, _piece, _back, _spare in (
        ("reflection", _mirrored, _mirrored_back, 1),
        ("replication", _edge, _edge_back, 0),
    ):
        PADDING[getattr(aten, f"{_name}_pad{_rank}d").default] = _joined(_piece, _spare)
        PADDING[getattr(aten, f"{_name}_pad{_rank}d_backward").default] = _added(_back, _spare)
