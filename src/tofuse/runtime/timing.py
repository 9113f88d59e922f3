"""How long a call takes, on a machine that others use too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

Step = Callable[[], object]
SAMPLE_S = 20e-6  # a shorter call is repeated until a sample takes this long


def fastest_us(step: Step, seconds: float = 0.02, least: int = 5) -> float:
    """The shortest of many calls, in microseconds: what disturbs only ever adds."""
    (found,) = race_us([step], seconds, least)
    return found


def race_us(steps: Sequence[Step], seconds: float = 0.02, least: int = 5) -> list[float]:
    """The shortest time of each step in microseconds, all taking turns.

    At least `least` turns, and more until each has had `seconds`.
    """
    repeats = [_repeats(step) for step in steps]
    best = [float("inf")] * len(steps)
    end = time.perf_counter() + seconds * len(steps)
    turn = 0
    while turn < least or time.perf_counter() < end:
        for k, step in enumerate(steps):
            best[k] = min(best[k], _sample(step, repeats[k]))
        turn += 1
    return [1e6 * b for b in best]


@contextmanager
def real_tensors() -> Iterator[None]:
    """Tensors with memory, as at run time, though compilation works on fake ones."""
    with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Torch on so many threads for as long as the context lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _repeats(step: Step) -> int:
    """Warm up, then say how many calls make a sample."""
    step()
    once = min(_sample(step, 1) for _ in range(2))
    return max(1, min(50, int(SAMPLE_S / max(once, 1e-7))))


def _sample(step: Step, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats
