"""The programs whose GPU kernels are checked: those of the benchmarks, in fp32 and bf16."""

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.seeds import SEEDS, Seed
from benchmarks.workloads import layers
from benchmarks.workloads.base import Workload, leaf
from benchmarks.workloads.catalogue import MODELS, SIZES
from benchmarks.workloads.extra import EXTRA
from benchmarks.workloads.table import TABLE
from suites.gpu.capture import Example

ExampleMaker = Callable[[torch.dtype], Example]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
DEPTHS = (2, 4)
# 200 tensors of an optimizer have one text; the seeds among the workloads have the dtype float32.
LEFT_OUT = {"adamw", "clip_grad_norm", *(seed.name for seed in SEEDS)}
TRAINED = ("bert_training", "llama_training", "resnet_training")
WIDTHS = (4096, 8192, 16384, 32768, 65536)
ROW_ELEMENTS = 1 << 26


def programs() -> dict[str, ExampleMaker]:
    """Return the functions that make each program and its arguments where tensors are fake."""
    found: dict[str, ExampleMaker] = {seed.name: _of_seed(seed) for seed in SEEDS}
    for workload in (*TABLE, *EXTRA, *SIZES):
        if workload.name not in LEFT_OUT:
            found[workload.name] = _of_workload(workload)
    found["embedding_norm"] = _embedding
    found["transpose"] = lambda dtype: (_transpose, (torch.randn(4096, 4096).to(dtype),), {})
    for width in WIDTHS:
        found[f"softmax_{width}"] = _rows(layers.softmax, width, 0)
        found[f"layer_norm_{width}"] = _rows(layers.layer_norm, width, 2)
        found[f"rms_norm_{width}"] = _rows(layers.rms_norm, width, 1)
    found["cross_entropy_50257"] = _vocabulary
    found["encoder_1"] = _encoder(1)
    found["qk_norm_rope"] = _qk_norm_rope
    found["norm_fp8"] = _norm_fp8
    return found


def products() -> dict[str, ExampleMaker]:
    """Return programs of matrix products, all of which kernels compute in this suite."""
    rows, width, hidden = 4096, 2048, 4096
    return {
        "product_gelu": _of_shapes(
            lambda x, w, b: F.gelu(F.linear(x, w, b)), (rows, width), (hidden, width), (hidden,)
        ),
        "product_gated": _of_shapes(
            lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v),
            *((rows, width), (hidden, width), (hidden, width)),
        ),
        "product_of_norm": _of_shapes(
            lambda x, g, w: F.linear(F.rms_norm(x, (width,), g), w),
            *((rows, width), (width,), (hidden, width)),
        ),
        "product_residual": _of_shapes(
            lambda x, w, r: r + F.linear(x, w) * 0.5,
            *((rows, hidden), (width, hidden), (rows, width)),
        ),
        "product_of_few_rows": _of_shapes(
            lambda x, w: F.relu(F.linear(x, w)), (8, hidden), (width, hidden)
        ),
        "product_of_int8": _int8_weight,
        "products_batched": _of_shapes(
            lambda x, y: torch.bmm(x, y).tanh(), (64, 512, 128), (64, 128, 512)
        ),
    }


def deep_models() -> dict[str, ExampleMaker]:
    """Return models whose layers are alike, to count their kernels."""
    return {f"encoder_{count}": _encoder(count) for count in DEPTHS}


def models() -> dict[str, ExampleMaker]:
    """Return the training steps of models, which have one dtype."""
    return {w.name: _of_workload(w) for w in MODELS if w.name in TRAINED}


def _of_seed(seed: Seed) -> ExampleMaker:
    def make(dtype: torch.dtype) -> Example:
        inputs = seed.make_inputs("full")
        return seed.program, tuple(_cast(x, dtype) for x in inputs), {}

    return make


def _cast(x: object, dtype: torch.dtype) -> object:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return x.detach().to(dtype).requires_grad_(x.requires_grad)


class _RecordedCall(Exception):
    """Carries the arguments of the call of a workload's program."""


def _of_workload(workload: Workload) -> ExampleMaker:
    """Return the maker of the program that a workload's step calls, with its arguments."""

    def make(dtype: torch.dtype) -> Example:
        case = replace(workload, dtype=dtype).build("full")
        calls: list[Example] = []

        def record(*args: object, **kwargs: object) -> Tensor:
            calls.append((case.target, args, kwargs))
            raise _RecordedCall

        try:
            case.drive(record).run()
        except _RecordedCall:
            return calls[0]
        raise AssertionError(f"{workload.name} calls no program")

    return make


def _embedding(dtype: torch.dtype) -> Example:
    table, positions = leaf((16384, 768), dtype), leaf((128, 768), dtype)
    ids = torch.randint(16384, (64, 128))
    return layers.embed, (table, positions, leaf((768,), dtype), leaf((768,), dtype), ids), {}


def _of_shapes(program: Callable[..., object], *shapes: tuple[int, ...]) -> ExampleMaker:
    """Return the maker of an inference program on tensors of these shapes."""
    return lambda dtype: (program, tuple(torch.randn(s).to(dtype) for s in shapes), {})


def _int8_weight(dtype: torch.dtype) -> Example:
    def program(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        return F.linear(x, w.to(x.dtype) * scale[:, None])

    weight = torch.randint(-128, 127, (4096, 4096), dtype=torch.int8)
    return program, (torch.randn(16, 4096).to(dtype), weight, torch.randn(4096).to(dtype)), {}


def _qk_norm_rope(dtype: torch.dtype) -> Example:
    """Norms of the heads of queries and keys, and their rotation by position."""

    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]

    def program(qkv: Tensor, g: Tensor, h: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        q, k, v = qkv.unbind(2)
        q, k = (F.rms_norm(x, (128,), weight) for x, weight in ((q, g), (k, h)))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    shapes = ((8, 1024, 3, 16, 128), (128,), (128,), (1024, 128), (1024, 128))
    return program, tuple(torch.randn(s).to(dtype) for s in shapes), {}


def _norm_fp8(dtype: torch.dtype) -> Example:
    """A residual and its norm, quantized to fp8 with a scale for each row."""

    def program(x: Tensor, r: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        total = x + r
        y = F.rms_norm(total, (4096,), g).float()
        scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
        return total, (y / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale

    shapes = ((8192, 4096), (8192, 4096), (4096,))
    return program, tuple(torch.randn(s).to(dtype) for s in shapes), {}


def _transpose(x: Tensor) -> Tensor:
    return (x.t() * 2).contiguous()


def _rows(program: Callable[..., Tensor], width: int, vectors: int) -> ExampleMaker:
    def make(dtype: torch.dtype) -> Example:
        x = leaf((ROW_ELEMENTS // width, width), dtype)
        return program, (x, *(leaf((width,), dtype) for _ in range(vectors))), {}

    return make


def _vocabulary(dtype: torch.dtype) -> Example:
    return F.cross_entropy, (leaf((4096, 50257), dtype), torch.randint(50257, (4096,))), {}


def _encoder(count: int) -> ExampleMaker:
    """Return the maker of a Transformer encoder with dropout, of `count` layers."""

    def make(dtype: torch.dtype) -> Example:
        make_layer = functools.partial(nn.TransformerEncoderLayer, 1024, 16, 4096, 0.1, F.gelu)
        model = nn.Sequential(*(make_layer(batch_first=True, dtype=dtype) for _ in range(count)))
        return model.train(), (torch.randn(16, 512, 1024).to(dtype),), {}

    return make
