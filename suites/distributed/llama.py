"""A small Llama, and how its layers are split over the ranks of a mesh."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model, and of the sequences that it gets."""

    vocabulary: int = 512
    width: int = 128
    heads: int = 4
    hidden: int = 352
    length: int = 32

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.width // self.heads


SMALL = Sizes()
SELECTED = [torch.ops.aten.mm.default]  # the operators whose results "selective" keeps
CHECKPOINTS: dict[str, Callable[..., Tensor]] = {
    "reentrant": partial(checkpoint, use_reentrant=True),
    "nonreentrant": partial(checkpoint, use_reentrant=False),
    "selective": partial(
        checkpoint,
        use_reentrant=False,
        context_fn=partial(create_selective_checkpoint_contexts, SELECTED),
    ),
}


class Attention(nn.Module):
    """Causal attention with rotary positions, of as many heads as its rank has."""

    cos: Tensor
    sin: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head = sizes.head
        self.query, self.key, self.value, self.out = (
            nn.Linear(sizes.width, sizes.width, bias=False) for _ in range(4)
        )
        frequencies = 10000 ** -(torch.arange(0, self.head, 2) / self.head)
        angles = torch.outer(torch.arange(sizes.length), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.view(*part.shape[:2], -1, self.head).transpose(1, 2)
            for part in (self.query(x), self.key(x), self.value(x))
        )
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def rotate(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        y = x * self.cos + torch.cat([-second, first], -1) * self.sin
        return y.to(x.dtype)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(sizes.width), Attention(sizes)
        self.feed_norm, self.feed = nn.RMSNorm(sizes.width), FeedForward(sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.feed_norm(x))


class Checkpointed(nn.Module):
    """A block whose activations the backward computes again; `kind` is a key of CHECKPOINTS."""

    def __init__(self, block: nn.Module, kind: str) -> None:
        super().__init__()
        self.block, self.checkpoint = block, CHECKPOINTS[kind]

    def forward(self, x: Tensor) -> Tensor:
        return self.checkpoint(self.block, x)


class Llama(nn.Module):
    """Tokens to logits."""

    def __init__(self, blocks: int = 2, sizes: Sizes = SMALL) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(blocks))
        self.norm = nn.RMSNorm(sizes.width)
        self.out = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def make_tensor_parallel(model: Llama, mesh: DeviceMesh) -> Llama:
    """Split projections over the ranks; activations between them are whole on each."""
    styles: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "out": ColwiseParallel(output_layouts=Replicate()),
    }
    for k in range(len(model.blocks)):
        styles |= {f"blocks.{k}.{name}": ColwiseParallel() for name in SPLIT_BY_COLUMNS}
        styles |= {f"blocks.{k}.{name}": RowwiseParallel() for name in SPLIT_BY_ROWS}
    parallelize_module(model, mesh, styles)
    return model


def make_sequence_parallel(model: Llama, mesh: DeviceMesh, *, split_logits: bool = False) -> Llama:
    """Split the activations between projections, too: along the sequence.

    With `split_logits`, the logits are a DTensor split over the vocabulary, for `loss_parallel`.
    """
    gather = partial(PrepareModuleInput, input_layouts=(Shard(1),))
    styles: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "out": ColwiseParallel(
            input_layouts=Shard(1),
            output_layouts=Shard(-1) if split_logits else Replicate(),
            use_local_output=not split_logits,
        ),
    }
    for k in range(len(model.blocks)):
        for part in ("attention", "feed"):
            styles[f"blocks.{k}.{part}_norm"] = SequenceParallel()
            styles[f"blocks.{k}.{part}"] = gather(desired_input_layouts=(Replicate(),))
        styles |= {f"blocks.{k}.{name}": ColwiseParallel() for name in SPLIT_BY_COLUMNS}
        by_rows = RowwiseParallel(output_layouts=Shard(1))
        styles |= {f"blocks.{k}.{name}": by_rows for name in SPLIT_BY_ROWS}
    parallelize_module(model, mesh, styles)
    return model


SPLIT_BY_COLUMNS = ("attention.query", "attention.key", "attention.value", "feed.gate", "feed.up")
SPLIT_BY_ROWS = ("attention.out", "feed.down")
