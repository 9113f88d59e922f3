"""The models whose first steps are timed, with random weights, and a batch for each."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
)

WORDS, LENGTH = 1000, 64


@dataclass(frozen=True)
class Trained:
    """A model whose results, for its batch, are trained to be small."""

    model: nn.Module
    batch: tuple[Tensor, ...]


class Logits(nn.Module):
    """A model of transformers that returns its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


class Block(nn.Module):
    """Convolutions and norms with a residual, into which the time is added."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(n, after, 3, padding=1) for n in (before, after))
        self.norms = nn.ModuleList([nn.GroupNorm(8, n) for n in (before, after)])
        self.time, self.skip = nn.Linear(64, after), nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(F.silu(self.norms[0](x))) + self.time(time)[:, :, None, None]
        result: Tensor = self.skip(x) + self.second(F.silu(self.norms[1](y)))
        return result


class Attention(nn.Module):
    """Attention of all pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(pixels).chunk(3, -1))
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        result: Tensor = x + self.out(found).transpose(1, 2).reshape(x.shape)
        return result


class DiffusionUNet(nn.Module):
    """Predict the noise in an image at a time."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter, self.leave = (
            nn.Conv2d(*sizes, 3, padding=1) for sizes in ((3, channels), (channels, 3))
        )
        self.down = nn.ModuleList([Block(channels, channels), Block(channels, 2 * channels)])
        self.middle, self.attention = Block(2 * channels, 2 * channels), Attention(2 * channels)
        self.up = nn.ModuleList([Block(4 * channels, channels), Block(2 * channels, channels)])

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.exp(-torch.arange(32, device=x.device) / 4.0)
        embedding = torch.cat([angles.sin(), angles.cos()], -1)
        above = self.down[0](self.enter(x), embedding)
        below = self.down[1](F.avg_pool2d(above, 2), embedding)
        y = self.attention(self.middle(F.avg_pool2d(below, 2), embedding))
        y = self.up[0](torch.cat([F.interpolate(y, scale_factor=2), below], 1), embedding)
        y = self.up[1](torch.cat([F.interpolate(y, scale_factor=2), above], 1), embedding)
        result: Tensor = self.leave(y)
        return result


def _bert() -> Trained:
    config = BertConfig(
        num_hidden_layers=12, hidden_size=256, num_attention_heads=4, intermediate_size=1024,
        vocab_size=WORDS,
    )  # fmt: skip
    return Trained(Logits(BertForMaskedLM(config)), (torch.randint(WORDS, (4, LENGTH)),))


def _llama() -> Trained:
    config = LlamaConfig(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=768, vocab_size=WORDS, use_cache=False,
    )  # fmt: skip
    return Trained(Logits(LlamaForCausalLM(config)), (torch.randint(WORDS, (4, LENGTH)),))


def _resnet() -> Trained:
    config = ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2],
        layer_type="basic",
    )  # fmt: skip
    return Trained(Logits(ResNetForImageClassification(config)), (torch.randn(4, 3, 64, 64),))


def _unet() -> Trained:
    return Trained(DiffusionUNet(32), (torch.randn(2, 3, 32, 32), torch.rand(2)))


def _mlp() -> Trained:
    layers = [nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10)]
    return Trained(nn.Sequential(*layers), (torch.randn(64, 256),))


MODELS: dict[str, Callable[[], Trained]] = {
    "BERT, 12 layers": _bert,
    "Llama, 4 layers": _llama,
    "ResNet-18": _resnet,
    "diffusion UNet": _unet,
    "MLP": _mlp,
}
