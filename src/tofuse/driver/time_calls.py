"""Time calls of the eager and of the compiled function."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import torch

from tofuse.report.call_times import CallTimes
from tofuse.runtime.double_backward import reachable_leaves
from tofuse.runtime.timing import now
from tofuse.torch_internals.trees import tensor_leaves


def time_calls(
    eager: Callable[..., object],
    compiled: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> CallTimes:
    """Return the median times of both; calls alternate, so that noise affects both alike."""
    rounds = [
        (*timed_call(eager, args, kwargs), *timed_call(compiled, args, kwargs))
        for _ in range(ROUNDS)
    ]
    return CallTimes(ROUNDS, *(statistics.median(times) for times in zip(*rounds, strict=True)))


def timed_call(
    function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[float, float]:
    """Return the microseconds of the forward, and of the backward (0 if there is none)."""
    begin = now()
    outputs = [t for t in tensor_leaves(function(*args, **kwargs)) if t.grad_fn is not None]
    forward = now() - begin
    leaves = reachable_leaves([t.grad_fn for t in outputs])
    if not leaves:
        return forward / 1e3, 0.0
    ones = [torch.ones_like(t) for t in outputs]
    begin = now()
    try:
        torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
    except RuntimeError as error:
        if not any(message in str(error) for message in BACKWARD_DONE_MESSAGES):
            raise
        return forward / 1e3, 0.0
    return forward / 1e3, (now() - begin) / 1e3


# errors of autograd if the function has run the backward itself: the graph is freed, or an
# optimizer has changed a saved tensor
BACKWARD_DONE_MESSAGES = (
    "backward through the graph a second time",
    "modified by an inplace operation",
)


ROUNDS = 7  # an odd number: the median is a measured value
