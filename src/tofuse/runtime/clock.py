"""Measure times: of a plan's steps, of whole calls, and the limits of this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from tofuse.runtime.cuda import synchronize

COPY_BYTES = 1 << 26  # larger than most caches, so that the rate is that of memory
MATRIX_SIZE = 768  # a matrix product of this size occupies all cores for a few milliseconds
TRIALS = 5

Interval = tuple[int, int]  # begin and end, in nanoseconds of `time.perf_counter_ns`


class Clock:
    """Begin and end of each step of a plan, in each run since the last `reset`.

    A launch is timed from Python, so its time includes a few microseconds of call overhead.
    """

    def __init__(self) -> None:
        self.intervals: dict[int, list[Interval]] = {}

    def record(self, step: int, begin: int, end: int) -> None:
        self.intervals.setdefault(step, []).append((begin, end))

    def reset(self) -> None:
        self.intervals.clear()

    def last_run(self) -> dict[int, Interval]:
        """Return begin and end of each step in the last run."""
        return {step: intervals[-1] for step, intervals in self.intervals.items()}

    def median_us(self) -> dict[int, float]:
        """Return the median time of each step."""
        return {
            step: statistics.median(end - begin for begin, end in intervals) / 1e3
            for step, intervals in self.intervals.items()
        }


def now() -> int:
    """Return the time in nanoseconds, after all GPU work is done."""
    synchronize()
    return time.perf_counter_ns()


def best_ns(work: Callable[[], object]) -> int:
    """Return the shortest time of a few runs, after one run to warm up."""
    work()
    shortest = -1
    for _ in range(TRIALS):
        begin = now()
        work()
        elapsed = now() - begin
        shortest = elapsed if shortest < 0 else min(shortest, elapsed)
    return max(shortest, 1)


def machine_limits() -> tuple[float, float]:
    """Return the bytes per second of a large copy (read plus written), and the floating-point
    operations per second of a float32 matrix product."""
    source = torch.ones(COPY_BYTES // 4)
    target = torch.empty_like(source)
    copy_ns = best_ns(lambda: target.copy_(source))
    a = torch.ones(MATRIX_SIZE, MATRIX_SIZE)
    matmul_ns = best_ns(lambda: torch.mm(a, a))
    return 2e9 * COPY_BYTES / copy_ns, 2e9 * MATRIX_SIZE**3 / matmul_ns
