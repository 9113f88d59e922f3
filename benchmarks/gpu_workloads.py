"""Programs of `benchmarks.gpu`, with their inputs and the traffic that each needs at least."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import programs

ROW_ELEMENTS = 1 << 25  # of each tensor of the workloads by columns
COLUMNS = (1024, 4096, 8192, 16384, 32768, 50257, 65536)
TensorProgram = Callable[..., Tensor]
GpuInputMaker = Callable[[torch.dtype], "tuple[Tensor | int, ...]"]


@dataclass(frozen=True)
class GpuWorkload:
    """A program, its inputs, and the minimum traffic of its forward and backward.

    The traffic is in tensors of the first input's bytes. `is_random` results depend on random
    numbers.
    """

    name: str
    program: TensorProgram
    make: GpuInputMaker
    forward: float
    backward: float = 0.0
    is_random: bool = False
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)


def leaf_input(*shape: int) -> GpuInputMaker:
    return lambda dtype: (torch.randn(shape, device="cuda").to(dtype).requires_grad_(),)


def norm_inputs(vectors: int) -> GpuInputMaker:
    def make(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
        shape = (64, 128, 1024)
        x, residual = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
        rest = [torch.randn(1024, device="cuda").to(dtype) for _ in range(vectors)]
        return tuple(t.requires_grad_() for t in (x, rest[0], residual, *rest[1:]))

    return make


def logits_and_labels(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    logits = torch.randn(8192, 32000, device="cuda").to(dtype).requires_grad_()
    return logits, torch.randint(32000, (8192,), device="cuda")


def stacked_inputs(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    x = torch.rand(16 * 1024 * 256, device="cuda").to(dtype)
    weight, bias = torch.randn(1, 256, device="cuda").to(dtype), torch.randn(1, device="cuda")
    return x, weight, bias.to(dtype), 1024


def heads_inputs(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    return torch.randn(768, 128, 64, device="cuda").to(dtype), 12


def two_matrices(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    return tuple(torch.randn(4096, 4096, device="cuda").to(dtype) for _ in range(2))


def wide_rows(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    return torch.randn(8192, 3072, device="cuda").to(dtype), 64


def transpose(x: Tensor) -> Tensor:
    return (x.t() * 2).contiguous()


def without_grad(make: GpuInputMaker) -> GpuInputMaker:
    return lambda dtype: tuple(t.detach() if isinstance(t, Tensor) else t for t in make(dtype))


SEEDS = (
    GpuWorkload("combined", programs.combined_weights, stacked_inputs, 1),
    GpuWorkload("split_stack", programs.split_stack_weights, stacked_inputs, 1),
    GpuWorkload("complex_activation", programs.complex_activation, two_matrices, 3),
    GpuWorkload("norm_composite", programs.composite, norm_inputs(3), 3, 5, is_random=True),
    GpuWorkload("norm_primitive", programs.primitive, norm_inputs(3), 3, 5, is_random=True),
    GpuWorkload("norm_rms", programs.rms, norm_inputs(2), 3, 5, is_random=True),
    GpuWorkload("norm_keep_all", programs.composite_keep_all, norm_inputs(3), 3, 5),
    GpuWorkload("gelu_bookends", programs.gelu_bookends, wide_rows, 2),
    GpuWorkload("softmax", programs.softmax, leaf_input(8192, 3072), 2, 3),
    GpuWorkload("cross_entropy", F.cross_entropy, logits_and_labels, 1, 2),
    GpuWorkload("heads_to_rows", programs.heads_to_rows, heads_inputs, 2),
    GpuWorkload("transpose", transpose, without_grad(leaf_input(4096, 4096)), 2),
)


def row_inputs(columns: int, vectors: int) -> GpuInputMaker:
    def make(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
        shapes = [(ROW_ELEMENTS // columns, columns), *[(columns,)] * vectors]
        return tuple(torch.randn(s, device="cuda").to(dtype).requires_grad_() for s in shapes)

    return make


def class_inputs(columns: int) -> GpuInputMaker:
    def make(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
        (logits,) = row_inputs(columns, 0)(dtype)
        assert isinstance(logits, Tensor)
        return logits, torch.randint(columns, (logits.shape[0],), device="cuda")

    return make


def softmax_rows(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def layer_norm_rows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def rms_norm_rows(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def by_columns() -> tuple[GpuWorkload, ...]:
    """Return softmax, cross-entropy and norms of rows of each length."""
    half = (torch.bfloat16,)
    found = []
    for n in COLUMNS:
        found += [
            GpuWorkload(f"softmax_{n}", softmax_rows, row_inputs(n, 0), 2, 3, dtypes=half),
            GpuWorkload(f"cross_entropy_{n}", F.cross_entropy, class_inputs(n), 1, 2, dtypes=half),
            GpuWorkload(f"layer_norm_{n}", layer_norm_rows, row_inputs(n, 2), 2, 3, dtypes=half),
            GpuWorkload(f"rms_norm_{n}", rms_norm_rows, row_inputs(n, 1), 2, 3, dtypes=half),
        ]
    return tuple(found)


class LlamaBlock(nn.Module):
    """Norms, rotary attention and a gated feed-forward layer, with residuals."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_feed_forward = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = (nn.Linear(width, n * width, bias=False) for n in (3, 1))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x))
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (t * cos + self.rotated(t) * sin for t in (q, k))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        y = self.before_feed_forward(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    @staticmethod
    def rotated(t: Tensor) -> Tensor:
        first, second = t.chunk(2, -1)
        return torch.cat([-second, first], -1)


def llama_block(dtype: torch.dtype) -> tuple[TensorProgram, tuple[Tensor | int, ...]]:
    block = LlamaBlock(2048, 16, 5504).to("cuda", dtype)
    x = torch.randn(4, 1024, 2048, device="cuda").to(dtype).requires_grad_()
    angles = torch.randn(1024, 128, device="cuda")
    return block, (x, angles.cos().to(dtype), angles.sin().to(dtype))


def bert_layer(dtype: torch.dtype) -> tuple[TensorProgram, tuple[Tensor | int, ...]]:
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, 0.1, F.gelu, batch_first=True)
    x = torch.randn(16, 512, 1024, device="cuda").to(dtype).requires_grad_()
    return layer.to("cuda", dtype), (x,)


def small_layers(
    dtype: torch.dtype, layers: int = 4, width: int = 64
) -> tuple[TensorProgram, tuple[Tensor | int, ...]]:
    parts = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)]
    x = torch.randn(32, width, device="cuda").to(dtype).requires_grad_()
    return nn.Sequential(*parts).to("cuda", dtype), (x,)


@dataclass(frozen=True)
class GpuModule:
    """A module's training step: forward, and gradients of input and parameters."""

    name: str
    make: Callable[[torch.dtype], tuple[TensorProgram, tuple[Tensor | int, ...]]]


WORKLOADS = (*SEEDS, *by_columns())
MODULES = (
    GpuModule("bert_layer", bert_layer),
    GpuModule("llama_block", llama_block),
    GpuModule("small_layers", small_layers),
)
