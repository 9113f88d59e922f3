"""Arguments that are results of collectives nobody has waited for: the program gets plain tensors.

Eager wraps such a result in AsyncCollectiveTensor, which waits where it is first read. AOTAutograd
waits for an argument outside of autograd, so that its gradient is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tofuse.capture.aot.boxed import CompiledFunction
from tofuse.torch_internals.fake_tensors import AsyncCollectiveTensor


def plain_inputs(inputs: Sequence[object]) -> tuple[Sequence[object], list[int]]:
    """Return the inputs with plain fake tensors for such results, and their positions."""
    positions = [k for k, x in enumerate(inputs) if isinstance(x, AsyncCollectiveTensor)]
    if not positions:
        return inputs, []
    return [_plain(x) if isinstance(x, AsyncCollectiveTensor) else x for x in inputs], positions


def wait_for_arguments(run: CompiledFunction, positions: Sequence[int]) -> CompiledFunction:
    """Return `run`, called with the results at these positions after they were waited for."""
    if not positions:
        return run

    def call(*args: object) -> object:
        waited = list(args)
        for k in positions:
            waited[k] = _Wait.apply(args[k])
        return run(*waited)

    return call


def _plain(x: AsyncCollectiveTensor) -> Tensor:
    plain = x.elem.new_empty_strided(x.size(), x.stride())
    return plain.requires_grad_(x.requires_grad)


class _Wait(torch.autograd.Function):
    """The tensor inside an AsyncCollectiveTensor, ready to be read."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        waited: Tensor = x.trigger_wait() if isinstance(x, AsyncCollectiveTensor) else x
        return waited.view_as(waited)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient
