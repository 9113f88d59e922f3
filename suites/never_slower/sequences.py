"""Programs of a few operators, which fuse where that is faster."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from suites.never_slower.program import Program, function, module


def _then(make, *steps):  # type: ignore[no-untyped-def]  # functions of tensors
    """Return a factory of a module whose result goes through functions."""
    return lambda: _Chain(make(), steps)


class _Chain(nn.Module):
    def __init__(self, first: nn.Module, steps) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.first, self.steps = first, steps

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for step in self.steps:
            x = step(x)
        return x


def _residual_norm(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x + F.gelu(y), (x.shape[-1],)) * w


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + rotated * sin


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def _focal_loss(x: Tensor, y: Tensor) -> Tensor:
    p, target = x.sigmoid(), (y > 0).float()
    cost = F.binary_cross_entropy_with_logits(x, target, reduction="none")
    return (cost * (1 - (p * target + (1 - p) * (1 - target))) ** 2).mean()


def _pairwise_distances(x: Tensor, y: Tensor) -> Tensor:
    return ((x[:, None] - y[None]) ** 2).sum(-1).sqrt().amin(1)


def _contrastive_loss(x: Tensor, y: Tensor) -> Tensor:
    similarity = F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T / 0.07
    return F.cross_entropy(similarity, torch.arange(len(x)))


def _gated(x: Tensor, w: Tensor) -> Tensor:
    a, b = (x @ w).chunk(2, -1)
    return a * b.sigmoid()


def _complex_rotation(x: Tensor, phase: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(phase), phase)).flatten(-2)


SEQUENCES: dict[str, Program] = {
    "linear, relu": module(_then(lambda: nn.Linear(256, 512), F.relu), (128, 256)),
    "linear of few rows, gelu": module(_then(lambda: nn.Linear(1024, 4096), F.gelu), (8, 1024)),
    "linear, swish, scale": module(
        _then(lambda: nn.Linear(512, 512), F.silu, lambda x: x * 2 + 1), (256, 512)
    ),
    "linear, softmax": module(
        _then(lambda: nn.Linear(256, 1000), lambda x: x.softmax(-1)), (64, 256)
    ),
    "linear, dropout, norm": module(
        lambda: nn.Sequential(nn.Linear(512, 512), nn.Dropout(0.0), nn.LayerNorm(512)), (256, 512)
    ),
    "linear, sum, logsumexp": module(
        _then(lambda: nn.Linear(512, 256), lambda x: x.logsumexp(-1).mean()), (512, 512)
    ),
    "linear, minimum, subtract": module(
        _then(lambda: nn.Linear(128, 128), lambda x: x.clamp(max=0.5) - 0.25), (1024, 128)
    ),
    "linear in bfloat16, tanh": module(
        _then(lambda: nn.Linear(256, 256).bfloat16(), torch.tanh), (256, 256)
    ),
    "convolution, relu, bias": module(
        _then(lambda: nn.Conv2d(16, 32, 3), F.relu, lambda x: x + 0.5), (8, 16, 32, 32)
    ),
    "convolution, norm, relu": module(
        lambda: nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()
        ),
        (8, 32, 32, 32),
    ),
    "convolution, mish, tanh": module(
        _then(lambda: nn.Conv2d(8, 32, 3), F.mish, torch.tanh), (8, 8, 40, 40)
    ),
    "convolution, group norm, pooling": module(
        lambda: nn.Sequential(nn.Conv2d(8, 32, 3), nn.GroupNorm(4, 32), nn.MaxPool2d(2)),
        (8, 8, 40, 40),
    ),
    "convolution, mean, softmax": module(
        _then(lambda: nn.Conv2d(16, 64, 3), lambda x: x.mean((2, 3)).softmax(-1)), (8, 16, 32, 32)
    ),
    "convolution of volumes, softmax, pooling": module(
        lambda: nn.Sequential(nn.Conv3d(3, 16, 3), nn.Softmax(1), nn.MaxPool3d(2)),
        (4, 3, 16, 32, 32),
    ),
    "separable convolution": module(
        lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Conv2d(64, 128, 1)),
        (4, 64, 32, 32),
    ),
    "separable convolution, norms, relu": module(
        lambda: nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
            nn.Conv2d(32, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6(),
        ),
        (8, 32, 28, 28),
    ),
    "transposed convolution, softmax, sigmoid": module(
        _then(lambda: nn.ConvTranspose2d(32, 16, 4, 2), lambda x: x.softmax(1).sigmoid()),
        (4, 32, 16, 16),
    ),
    "convolution of signals, norm, swish": module(
        lambda: nn.Sequential(nn.Conv1d(64, 64, 5, padding=2), nn.GroupNorm(8, 64), nn.SiLU()),
        (8, 64, 256),
    ),
    "residual, gelu, layer norm": function(
        _residual_norm, (512, 768), (512, 768), (768,)
    ),
    "rms norm": function(_rms_norm, (1024, 1024), (1024,)),
    "rotary embedding": function(_rotary, (4, 8, 128, 64), (128, 64), (128, 64)),
    "complex rotation": function(_complex_rotation, (8, 256, 128), (256, 64)),
    "attention": function(_attention, (4, 8, 128, 64), (4, 8, 128, 64), (4, 8, 128, 64)),
    "flash attention": function(
        F.scaled_dot_product_attention, (2, 8, 256, 64), (2, 8, 256, 64), (2, 8, 256, 64)
    ),
    "gated product": function(_gated, (512, 256), (256, 1024)),
    "focal loss": function(_focal_loss, (4096, 80), (4096, 80)),
    "contrastive loss": function(_contrastive_loss, (256, 128), (256, 128)),
    "pairwise distances": function(_pairwise_distances, (128, 16), (256, 16)),
    "dropout, addition": function(lambda x, r: F.dropout(x, 0.1) + r, (1024, 512), (1024, 512)),
    "few operations on little": function(lambda x, y: (x * y + x).tanh(), (8, 8), (8, 8)),
    "standardize columns": function(
        lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5), (4096, 64)
    ),
    "triangular product": function(lambda a, b: (a @ b).tril(), (256, 256), (256, 256)),
    "concat of heads": function(
        lambda x, y: torch.cat([x.relu(), y * 2], -1).transpose(0, 1).contiguous(),
        (256, 512), (256, 512),
    ),
    "gather of rows, scale": function(
        lambda x, w: x[torch.arange(0, len(x), 3)] * w, (3000, 256), (256,)
    ),
}  # fmt: skip
