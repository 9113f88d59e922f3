"""Work over 200 tensors at once: an AdamW step, and clipping the norm of all gradients."""

import torch
from torch import Tensor, nn

from benchmarks.seeds import Program, Size
from benchmarks.workloads.base import Case, Results, Step, nbytes

TENSORS = 200
SPREAD = 1000.0  # the largest tensor has so many times the elements of the smallest
ADAMW_PASSES = 7  # read parameter, gradient, both moments; write all but the gradient
CLIP_PASSES = 3  # read for the norm; read and write to scale


def adamw(size: Size, dtype: torch.dtype) -> Case:
    """A step of AdamW after one that made the moments; the gradients stay as they are."""
    parameters = make_parameters(size, dtype)
    optimiser = torch.optim.AdamW(parameters, lr=1e-4)
    optimiser.step()

    def update() -> Results:
        optimiser.step()
        return ()

    return in_place(update, parameters, ADAMW_PASSES)


def clip_grad_norm(size: Size, dtype: torch.dtype) -> Case:
    """Scale all gradients so that their joint norm is at most one."""
    parameters = make_parameters(size, dtype)

    def clip() -> Tensor:
        return nn.utils.clip_grad_norm_(parameters, 1.0)

    return in_place(clip, [p.grad for p in parameters if p.grad is not None], CLIP_PASSES)


def in_place(target: Program, tensors: list[Tensor], passes: int) -> Case:
    """A target without arguments that rewrites `tensors`, touching their bytes `passes` times."""

    def drive(compiled: Program) -> Step:
        def run() -> Results:
            compiled()
            return tuple(tensors)

        return Step(run, lambda: passes * nbytes(tensors))

    return Case(target, drive)


def make_parameters(size: Size, dtype: torch.dtype) -> list[Tensor]:
    """Parameters with gradients, their sizes spread evenly on a logarithmic scale."""
    count, elements = (TENSORS, 25_000_000) if size == "full" else (6, 3_000)
    weights = [SPREAD ** (i / (count - 1)) for i in range(count)]
    parameters: list[Tensor] = []
    for i, weight in enumerate(weights):
        length = max(1, round(elements * weight / sum(weights)))
        shape = (length // 64, 64) if i % 2 and length >= 64 else (length,)
        parameter = nn.Parameter(torch.randn(shape).to(dtype))
        parameter.grad = torch.randn(shape).to(dtype)
        parameters.append(parameter)
    return parameters
