"""Optimizer work on 200 tensors: an AdamW step, and clipping the norm of all gradients."""

import torch
from torch import Tensor, nn

from benchmarks.seeds import Program, Size
from benchmarks.workloads.base import Case, Results, Step, nbytes

TENSORS = 200
SIZE_RATIO = 1000.0  # elements of the largest tensor over those of the smallest
ADAMW_PASSES = 7  # read parameter, gradient, both moments; write all but the gradient
CLIP_PASSES = 3  # read for the norm; read and write to scale


def adamw(size: Size, dtype: torch.dtype) -> Case:
    """An AdamW step after the one that allocates the moments; the gradients stay the same."""
    parameters = make_parameters(size, dtype)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    optimizer.step()

    def update() -> Results:
        optimizer.step()
        return ()

    return in_place(update, parameters, ADAMW_PASSES)


def clip_grad_norm(size: Size, dtype: torch.dtype) -> Case:
    """Scale all gradients so that their joint norm is at most one."""
    parameters = make_parameters(size, dtype)

    def clip() -> Tensor:
        return nn.utils.clip_grad_norm_(parameters, 1.0)

    return in_place(clip, [p.grad for p in parameters if p.grad is not None], CLIP_PASSES)


def in_place(target: Program, tensors: list[Tensor], passes: int) -> Case:
    """Return a case that updates `tensors` in place and moves their bytes `passes` times."""

    def drive(compiled: Program) -> Step:
        def run() -> Results:
            compiled()
            return tuple(tensors)

        return Step(run, lambda: passes * nbytes(tensors))

    return Case(target, drive)


def make_parameters(size: Size, dtype: torch.dtype) -> list[Tensor]:
    """Return parameters with gradients, with sizes evenly spaced on a logarithmic scale."""
    count, elements = (TENSORS, 25_000_000) if size == "full" else (6, 3_000)
    weights = [SIZE_RATIO ** (i / (count - 1)) for i in range(count)]
    parameters: list[Tensor] = []
    for i, weight in enumerate(weights):
        length = max(1, round(elements * weight / sum(weights)))
        shape = (length // 64, 64) if i % 2 and length >= 64 else (length,)
        parameter = nn.Parameter(torch.randn(shape).to(dtype))
        parameter.grad = torch.randn(shape).to(dtype)
        parameters.append(parameter)
    return parameters
