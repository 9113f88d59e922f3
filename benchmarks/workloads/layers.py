"""Layers, reductions and losses for the workloads of extra.py."""

import torch
import torch.nn.functional as F
from torch import Tensor

DROP = 0.1
GROUPS = 32
SMOOTHING = 0.1


def layer_norm(x: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, shift)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps=1e-6)


def group_norm_silu(x: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    """The block before each convolution of a diffusion model."""
    return F.silu(F.group_norm(x, min(GROUPS, x.shape[1]), weight, shift))


def batch_norm(x: Tensor, weight: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Batch norm in training; updates the running mean and variance."""
    return F.batch_norm(x, mean, variance, weight, shift, training=True)


def softmax_outer(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=0)


def softmax_middle(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=1)


def sum_outer(x: Tensor) -> Tensor:
    return x.sum(0)


def sum_middle(x: Tensor) -> Tensor:
    return x.sum(1)


def masked_softmax_dropout(scores: Tensor, hidden: Tensor) -> Tensor:
    """Attention weights: mask, softmax, dropout."""
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return F.dropout(weights, DROP, training=True)


def rope(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of [batch, heads, length, width] by angles [length, width]."""
    return rotate_pairs(query, cosine, sine), rotate_pairs(key, cosine, sine)


def rotate_pairs(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair of elements of the two halves."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def geglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * value


def embed(words: Tensor, places: Tensor, weight: Tensor, shift: Tensor, ids: Tensor) -> Tensor:
    """Word plus position embedding, normalized: the first layer of BERT."""
    summed = F.embedding(ids, words) + places
    return F.layer_norm(summed, weight.shape, weight, shift)


def cross_entropy_smooth(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy with label smoothing; rows labelled -100 are ignored."""
    return F.cross_entropy(logits, labels, ignore_index=-100, label_smoothing=SMOOTHING)


def huber(x: Tensor, target: Tensor) -> Tensor:
    return F.huber_loss(x, target)


def kl(x: Tensor, target: Tensor) -> Tensor:
    """KL divergence of the softmax of x from target, both in logarithms."""
    return F.kl_div(torch.log_softmax(x, -1), target, reduction="batchmean", log_target=True)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def sum_rows(x: Tensor) -> Tensor:
    return x.sum(-1)
