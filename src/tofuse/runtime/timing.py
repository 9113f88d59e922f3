"""Measure how long a call takes on a machine that runs other work too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from tofuse.torch_internals.dispatch import disable_current_modes

TimedCall = Callable[[], object]
SAMPLE_S = 20e-6  # a shorter call is repeated until a sample takes this long


def fastest_us(call: TimedCall, seconds: float) -> float:
    """Return the shortest of many calls in microseconds: disturbances only add time."""
    return interleaved_us([call], seconds)[0]


def interleaved_us(calls: Sequence[TimedCall], seconds: float) -> list[float]:
    """Return the shortest time of each call in microseconds; the calls alternate.

    There are at least five rounds, and more until each call has had `seconds`.
    """
    repeats = [_repeats(call) for call in calls]
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds * len(calls)
    rounds = 0
    while rounds < 5 or time.perf_counter() < end:
        for k, call in enumerate(calls):
            best[k] = min(best[k], _sample(call, repeats[k]))
        rounds += 1
    return [1e6 * b for b in best]


@contextmanager
def real_tensors() -> Iterator[None]:
    """Disable fake tensors, gradients and changes of the random state, as for a measurement."""
    with disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _repeats(call: TimedCall) -> int:
    """Warm up, then return how many calls make a sample."""
    call()
    once = min(_sample(call, 1) for _ in range(2))
    return max(1, min(50, int(SAMPLE_S / max(once, 1e-7))))


def _sample(call: TimedCall, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
