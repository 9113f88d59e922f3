"""The workloads that must be as fast as every peer, also in bf16 and at sizes like 1023."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.seeds import Inputs, Program, Size
from benchmarks.workloads import layers
from benchmarks.workloads.base import (
    Call,
    Case,
    CaseMaker,
    InputMaker,
    Workload,
    calls,
    leaf,
    nbytes,
)
from benchmarks.workloads.optimizer import clip_grad_norm


def tensors(
    full: Sequence[int], small: Sequence[int], vectors: int = 0, axis: int = -1
) -> InputMaker:
    """Return a function that makes a normal tensor, and vectors as long as one of its axes."""

    def make(size: Size, dtype: torch.dtype) -> Inputs:
        shape = full if size == "full" else small
        return (leaf(shape, dtype), *(leaf((shape[axis],), dtype) for _ in range(vectors)))

    return make


def with_target(full: Sequence[int], small: Sequence[int], log_softmax: bool) -> InputMaker:
    """Return a function that makes a normal tensor and a target, optionally its log_softmax."""

    def make(size: Size, dtype: torch.dtype) -> Inputs:
        shape = full if size == "full" else small
        target = torch.randn(tuple(shape))
        return leaf(shape, dtype), (target.log_softmax(-1) if log_softmax else target).to(dtype)

    return make


def images(memory_format: torch.memory_format) -> InputMaker:
    """Return a function that makes the inputs of batch norm: images and per-channel vectors."""

    def make(size: Size, dtype: torch.dtype) -> Inputs:
        shape = (32, 64, 56, 56) if size == "full" else (2, 4, 5, 6)
        x = torch.randn(shape).to(dtype, memory_format=memory_format).requires_grad_()
        channels = shape[1:2]
        running = torch.zeros(channels, dtype=dtype), torch.ones(channels, dtype=dtype)
        return x, leaf(channels, dtype), leaf(channels, dtype), *running

    return make


def attention_scores(size: Size, dtype: torch.dtype) -> Inputs:
    batch, heads, length = (8, 12, 256) if size == "full" else (2, 3, 17)
    ends = torch.randint(length // 2, length, (batch,))
    masked = torch.arange(length) >= ends[:, None]
    return leaf((batch, heads, length, length), dtype), masked[:, None, None, :]


def queries_and_keys(size: Size, dtype: torch.dtype) -> Inputs:
    batch, heads, length, width = (8, 16, 512, 64) if size == "full" else (2, 3, 5, 8)
    rates = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(length), rates).repeat(1, 2)
    shape = (batch, heads, length, width)
    return leaf(shape, dtype), leaf(shape, dtype), angles.cos().to(dtype), angles.sin().to(dtype)


def labels_some_ignored(size: Size, dtype: torch.dtype) -> Inputs:
    rows, classes = (1024, 32000) if size == "full" else (16, 97)
    labels = torch.randint(classes, (rows,))
    labels[:: rows // 8] = -100
    return leaf((rows, classes), dtype), labels


def embedding(size: Size, dtype: torch.dtype) -> Case:
    """Return a case whose minimum bytes count the table rows looked up and the table's gradient."""
    full = size == "full"
    batch, length, words, width = (64, 128, 16384, 768) if full else (2, 5, 50, 24)
    table, positions = leaf((words, width), dtype), leaf((length, width), dtype)
    ids = torch.randint(words, (batch, length))
    inputs = (table, positions, leaf((width,), dtype), leaf((width,), dtype), ids)
    row = width * table.element_size()
    looked_up, result = ids.unique().numel() * row, ids.numel() * row
    forward = looked_up + nbytes((positions, ids)) + result
    backward = forward + nbytes((table, positions))
    min_bytes = forward + backward

    return Case(
        layers.embed,
        lambda compiled: Call(compiled, inputs, rereads_inputs=True).step(min_bytes),
    )


def trained(
    name: str, program: Program, inputs: InputMaker, rereads_inputs: bool = True
) -> Workload:
    """Return a workload of forward and backward."""
    return Workload(
        name,
        "extra",
        calls(program, inputs, backward=True, rereads_inputs=rereads_inputs),
    )


def forward(name: str, program: Program, inputs: InputMaker) -> Workload:
    return Workload(name, "extra", calls(program, inputs))


def in_bf16(workload: Workload) -> Workload:
    return replace(workload, name=f"{workload.name}_bf16", group="bf16", dtype=torch.bfloat16)


def at_size(shape: tuple[int, ...], small: tuple[int, ...]) -> tuple[Workload, ...]:
    """Return workloads of one shape: elementwise, norm, softmax, and sums over rows and columns."""
    name = "x".join(map(str, shape)) if len(shape) > 2 else str(shape[-1])
    one = tensors(shape, small)
    makes: dict[str, CaseMaker] = {
        "gelu": calls(layers.gelu, one),
        "layer_norm": calls(layers.layer_norm, tensors(shape, small, vectors=2), backward=True),
        "softmax": calls(layers.softmax, one, backward=True),
        "sum_rows": calls(layers.sum_rows, one),
        "sum_outer": calls(layers.sum_outer, one),
    }
    return tuple(Workload(f"{key}_{name}", "sizes", make) for key, make in makes.items())


ROWS = tensors((8192, 1024), (8, 65))
PLANES = tensors((32, 256, 1024), (3, 7, 33))
PAIRS = tensors((4096, 5632), (8, 66))
NORM = tensors((8192, 1024), (8, 65), vectors=2)
RMS = tensors((8192, 1024), (8, 65), vectors=1)
CHANNELS = tensors((8, 256, 64, 64), (2, 8, 3, 5), vectors=2, axis=1)

EXTRA: tuple[Workload, ...] = (
    forward("layer_norm", layers.layer_norm, NORM),
    trained("layer_norm_backward", layers.layer_norm, NORM),
    forward("rms_norm", layers.rms_norm, RMS),
    trained("rms_norm_backward", layers.rms_norm, RMS),
    trained("group_norm_silu", layers.group_norm_silu, CHANNELS),
    trained("batch_norm", layers.batch_norm, images(torch.contiguous_format)),
    trained("batch_norm_channels_last", layers.batch_norm, images(torch.channels_last)),
    forward("softmax_outer", layers.softmax_outer, ROWS),
    forward("softmax_middle", layers.softmax_middle, PLANES),
    forward("sum_outer", layers.sum_outer, ROWS),
    forward("sum_middle", layers.sum_middle, PLANES),
    replace(
        trained("masked_softmax_dropout", layers.masked_softmax_dropout, attention_scores),
        is_random=True,
    ),
    trained("rope", layers.rope, queries_and_keys, rereads_inputs=False),
    trained("swiglu", layers.swiglu, PAIRS),
    trained("geglu", layers.geglu, PAIRS),
    Workload("embedding_norm", "extra", embedding),
    trained("cross_entropy_smooth", layers.cross_entropy_smooth, labels_some_ignored),
    trained("huber", layers.huber, with_target((4096, 2048), (8, 33), log_softmax=False)),
    trained("kl", layers.kl, with_target((4096, 2048), (8, 33), log_softmax=True)),
    Workload("clip_grad_norm", "extra", clip_grad_norm),
)

BF16: tuple[Workload, ...] = tuple(in_bf16(workload) for workload in EXTRA)

SIZES: tuple[Workload, ...] = (
    *at_size((8192, 1023), (8, 23)),
    *at_size((8192, 1025), (8, 25)),
    *at_size((1024, 8191), (4, 91)),
    *at_size((7, 13, 1009), (3, 5, 29)),
)
