"""The models that are measured: a Llama with random weights, in several formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from tofuse.integrations.gguf_weight import GgufWeight

CONFIG = LlamaConfig(
    hidden_size=2048,
    num_hidden_layers=8,
    num_attention_heads=32,
    num_key_value_heads=8,
    intermediate_size=5632,
    vocab_size=32000,
    max_position_embeddings=2048,
)


class Int8(nn.Module):
    """A linear layer with a code of eight bits for each weight, and a scale for each row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.codes = nn.Buffer((weight / scale).round().to(torch.int8))
        self.scale = nn.Buffer(scale.to(linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.codes.to(x.dtype) * self.scale)


class Int4(nn.Module):
    """A linear layer with two codes in a byte, and a scale for 32 of them."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        groups = linear.weight.detach().float().unflatten(1, (-1, 32))
        scale = groups.abs().amax(2, keepdim=True) / 7
        codes = (groups / scale).round().to(torch.int8).add(8).to(torch.uint8)
        self.codes = nn.Buffer(codes[..., ::2] | (codes[..., 1::2] << 4))
        self.scale = nn.Buffer(scale.to(linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        codes = torch.stack((self.codes & 15, self.codes >> 4), -1).flatten(2)
        return F.linear(x, ((codes.to(x.dtype) - 8) * self.scale).flatten(1))


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter beside it (LoRA)."""

    def __init__(self, layer: nn.Module, columns: int, rows: int, rank: int = 16) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, columns) / columns**0.5)
        self.up = nn.Parameter(torch.zeros(rows, rank))

    def forward(self, x: Tensor) -> Tensor:
        small = F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype))
        return self.layer(x) + 2 * small


def llama(kind: str, config: LlamaConfig = CONFIG) -> LlamaForCausalLM:
    """Return a model in bfloat16 whose linear layers have the format `kind`: bf16, int8 or int4."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    formats: dict[str, Callable[[nn.Linear], nn.Module]] = {"int8": Int8, "int4": Int4}
    if kind in formats:
        replace_linear(model, formats[kind])
    return model


def replace_linear(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> None:
    """Replace each linear layer by what a function makes of it."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, make(child))


def stored_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors; of quantized ones, those of their codes and scales."""
    return sum(t.stored_bytes if isinstance(t, GgufWeight) else t.nbytes for t in tensors)
