"""The multilabel margin loss, composed of operations that compute what ATen does.

PyTorch's own decomposition, up to at least 2.15, counts class 0 as a target for each entry after
the first -1, and no table replaces it: it is applied before any table is read.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule


def margin_loss(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace in place the multilabel margin losses of a program and of the programs inside it."""
    for module in gm.modules():
        if isinstance(module, GraphModule):
            losses = module.graph.find_nodes(
                op="call_function", target=F.multilabel_margin_loss, sort=False
            )
            for node in losses:
                node.target = multilabel_margin_loss
            if losses:
                module.recompile()
    return gm, ()


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the loss over the targets before the first -1 of each row; arguments as PyTorch's."""
    if size_average is not None or reduce is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    if input.shape != target.shape or input.dim() not in (1, 2) or reduction not in REDUCTIONS:
        return F.multilabel_margin_loss(input, target, reduction=reduction)  # raises an error
    rows, targets = torch.atleast_2d(input), torch.atleast_2d(target)
    valid = (torch.cumsum(targets == -1, -1) == 0).unsqueeze(-1)
    classes = torch.arange(rows.shape[1], device=rows.device)
    is_target = (valid & (targets.unsqueeze(-1) == classes)).any(1, keepdim=True)
    scores = torch.gather(rows, -1, torch.where(valid.squeeze(-1), targets, 0)).unsqueeze(-1)
    margins = 1 - scores + rows.unsqueeze(1)
    counts = valid & ~is_target & (margins > 0)
    loss = torch.where(counts, margins / rows.shape[1], 0).sum((1, 2))
    if reduction == "none":
        return loss.reshape(target.shape[:-1])
    return loss.mean() if reduction == "mean" else loss.sum()


REDUCTIONS = ("mean", "sum", "none")
