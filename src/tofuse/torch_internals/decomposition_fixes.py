"""PyTorch's own decompositions that give something else than its operators, put right."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp.decompositions import Reduction
from torch._ops import OpOverload

MARGIN: OpOverload = torch.ops.aten.multilabel_margin_loss_forward.default


@functools.cache
def correct_decompositions() -> None:
    """In their place, for whoever traces: nothing that a table could say comes before them."""
    MARGIN.py_kernels[DispatchKey.Autograd] = _multilabel_margin_loss
    MARGIN._dispatch_cache.clear()


_margin = MARGIN.py_kernels[DispatchKey.Autograd]


def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Of the targets up to the first -1; torch's, up to 2.13 at least, takes class 0 in the place
    of each that follows."""
    _, is_target = _margin(x, target, reduction)
    rows, targets = torch.atleast_2d(x), torch.atleast_2d(target)
    valid = torch.cumsum(targets == -1, -1) == 0
    own = torch.gather(rows, -1, torch.where(valid, targets, 0))
    lost = (1.0 - own.unsqueeze(-1) + rows.unsqueeze(1)).clamp_min(0) / rows.shape[1]
    others = is_target.reshape(rows.shape).unsqueeze(1) == 0
    loss = torch.where(valid.unsqueeze(-1) & others, lost, 0).sum((1, 2))
    if reduction == Reduction.MEAN.value:
        return loss.mean(), is_target
    if reduction == Reduction.SUM.value:
        return loss.sum(), is_target
    return loss.reshape(target.shape[:-1]), is_target
