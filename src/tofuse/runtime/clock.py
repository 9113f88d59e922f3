"""Times: of a plan's steps, of whole calls, and of what this machine can do at best."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from tofuse.runtime.cuda import synchronize

COPY_BYTES = 1 << 26  # beyond most caches, so that a copy's rate is that of memory
MATRIX = 768  # a product of this size keeps every core busy and takes a few milliseconds
TRIALS = 5

Span = tuple[int, int]  # begin and end, in nanoseconds of `time.perf_counter_ns`


class Clock:
    """When each step of a plan began and ended, in each run since the last `reset`.

    A launch's time is that of the call from Python, a few microseconds of it the call itself.
    """

    def __init__(self) -> None:
        self.spans: dict[int, list[Span]] = {}

    def lap(self, step: int, begin: int, end: int) -> None:
        self.spans.setdefault(step, []).append((begin, end))

    def reset(self) -> None:
        self.spans.clear()

    def last(self) -> dict[int, Span]:
        """Each step's last run."""
        return {step: spans[-1] for step, spans in self.spans.items()}

    def microseconds(self) -> dict[int, float]:
        """Each step's median."""
        return {
            step: statistics.median(end - begin for begin, end in spans) / 1e3
            for step, spans in self.spans.items()
        }


def now() -> int:
    """The time when everything so far is done, by GPUs too."""
    synchronize()
    return time.perf_counter_ns()


def best_ns(work: Callable[[], object]) -> int:
    """The shortest of a few runs, after one that counts for nothing."""
    work()
    shortest = -1
    for _ in range(TRIALS):
        begin = now()
        work()
        taken = now() - begin
        shortest = taken if shortest < 0 else min(shortest, taken)
    return max(shortest, 1)


def machine_limits() -> tuple[float, float]:
    """Bytes a second of a large copy (read and written), additions and products a second of a
    float32 matrix product: what a kernel here can hope for."""
    source = torch.ones(COPY_BYTES // 4)
    target = torch.empty_like(source)
    copied = best_ns(lambda: target.copy_(source))
    a = torch.ones(MATRIX, MATRIX)
    multiplied = best_ns(lambda: torch.mm(a, a))
    return 2e9 * COPY_BYTES / copied, 2e9 * MATRIX**3 / multiplied
