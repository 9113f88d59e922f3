"""Fixes of PyTorch decompositions that compute other results than PyTorch's operators.

Replaces the Python kernel of `aten.multilabel_margin_loss_forward`. PyTorch's decomposition, up to
at least 2.13, counts class 0 as a target for each entry after the first -1. It runs before any
decomposition table, so a table entry cannot replace it. Without the patch, the compiled loss
differs from eager's for rows whose targets end with -1.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp.decompositions import Reduction
from torch._ops import OpOverload

MULTILABEL_MARGIN_LOSS: OpOverload = torch.ops.aten.multilabel_margin_loss_forward.default


@functools.cache
def install_decomposition_fixes() -> None:
    """Replace the faulty decompositions for every tracer in this process."""
    MULTILABEL_MARGIN_LOSS.py_kernels[DispatchKey.Autograd] = _multilabel_margin_loss
    MULTILABEL_MARGIN_LOSS._dispatch_cache.clear()


_torch_margin_loss = MULTILABEL_MARGIN_LOSS.py_kernels[DispatchKey.Autograd]


def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Return the loss over the targets before the first -1 of each row, and the target mask."""
    _, is_target = _torch_margin_loss(x, target, reduction)
    rows, targets = torch.atleast_2d(x), torch.atleast_2d(target)
    valid = torch.cumsum(targets == -1, -1) == 0
    target_scores = torch.gather(rows, -1, torch.where(valid, targets, 0))
    margins = (1.0 - target_scores.unsqueeze(-1) + rows.unsqueeze(1)).clamp_min(0) / rows.shape[1]
    others = is_target.reshape(rows.shape).unsqueeze(1) == 0
    loss = torch.where(valid.unsqueeze(-1) & others, margins, 0).sum((1, 2))
    if reduction == Reduction.MEAN.value:
        return loss.mean(), is_target
    if reduction == Reduction.SUM.value:
        return loss.sum(), is_target
    return loss.reshape(target.shape[:-1]), is_target
