"""Time calls of PyTorch's function and of ours, in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import torch

from tofuse.capture.aot.double_backward import reachable_leaves
from tofuse.report.model import CallTimes
from tofuse.runtime.clock import now


def time_calls(
    eager: Callable[..., object],
    ours: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> CallTimes:
    """Both in turn, so that what disturbs the machine disturbs them alike."""
    rounds = [
        (*timed_call(eager, args, kwargs), *timed_call(ours, args, kwargs)) for _ in range(ROUNDS)
    ]
    return CallTimes(ROUNDS, *(statistics.median(times) for times in zip(*rounds, strict=True)))


def timed_call(
    function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[float, float]:
    """Forward, and backward where there is one; microseconds of each."""
    begin = now()
    outputs = [t for t in _tensors(function(*args, **kwargs)) if t.grad_fn is not None]
    forward = now() - begin
    wanted = reachable_leaves([t.grad_fn for t in outputs])
    if not wanted:
        return forward / 1e3, 0.0
    ones = [torch.ones_like(t) for t in outputs]
    begin = now()
    try:
        torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
    except RuntimeError as error:  # of autograd's: the function has run the backward itself
        if not any(words in str(error) for words in OVER):
            raise
        return forward / 1e3, 0.0
    return forward / 1e3, (now() - begin) / 1e3


def _tensors(tree: object) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


# what autograd says where a graph is used up, and where an optimiser has changed what it needs
OVER = ("backward through the graph a second time", "modified by an inplace operation")


ROUNDS = 7  # of measured calls: odd, so that the median is one of them
