"""The workloads with individual targets: the seed programs, two losses, an optimizer."""

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.programs import softmax
from benchmarks.seeds import Inputs, Program, Size, pick
from benchmarks.workloads.base import Call, Case, Workload, calls, leaf
from benchmarks.workloads.optimizer import adamw


def from_seed(name: str) -> Workload:
    """Return a seed program as a workload."""
    seed = pick(name)

    def make(size: Size, dtype: torch.dtype) -> Case:
        inputs = seed.make_inputs(size)
        return Case(
            seed.program, lambda compiled: Call(compiled, inputs, rereads_inputs=True).step()
        )

    return Workload(name, "table", make, is_random=seed.dropout is not None)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss for one label per row."""
    return F.cross_entropy(logits, labels)


def softmax_inputs(size: Size, dtype: torch.dtype) -> Inputs:
    return (leaf((8192, 3072) if size == "full" else (32, 97), dtype),)


def logits_and_labels(size: Size, dtype: torch.dtype) -> Inputs:
    rows, classes = (1024, 32000) if size == "full" else (16, 97)
    return leaf((rows, classes), dtype), torch.randint(classes, (rows,))


def loss(name: str, program: Program, backward: bool) -> Workload:
    return Workload(name, "table", calls(program, logits_and_labels, backward=backward))


SEED_NAMES = (
    "norm_composite",
    "norm_primitive",
    "norm_rms",
    "norm_composite_keep_all",
    "complex_activation",
    "combined",
    "split_stack",
    "gelu_bookends",
    "gelu_bookends_kept",
    "heads_to_rows",
    "softmax",
)

TABLE: tuple[Workload, ...] = (
    *(from_seed(name) for name in SEED_NAMES),
    Workload("softmax_backward", "table", calls(softmax, softmax_inputs, backward=True)),
    loss("cross_entropy", cross_entropy, backward=False),
    loss("cross_entropy_backward", cross_entropy, backward=True),
    Workload("adamw", "table", adamw),
)
