"""Measure times: of a plan's steps, of whole calls, and the limits of this machine."""

from __future__ import annotations

import statistics
import time

import torch

from tofuse.runtime.cuda import synchronize
from tofuse.runtime.timing import fastest_us

COPY_BYTES = 1 << 26  # larger than most caches, so that the rate is that of memory
MATRIX_SIZE = 768  # a matrix product of this size occupies all cores for a few milliseconds

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


def machine_limits() -> tuple[float, float]:
    """Return the bytes per second of a large copy (read plus written), and the floating-point
    operations per second of a float32 matrix product."""
    source = torch.ones(COPY_BYTES // 4)
    target = torch.empty_like(source)
    copy_us = fastest_us(lambda: target.copy_(source), seconds=0)
    a = torch.ones(MATRIX_SIZE, MATRIX_SIZE)
    matmul_us = fastest_us(lambda: torch.mm(a, a), seconds=0)
    return 2e6 * COPY_BYTES / copy_us, 2e6 * MATRIX_SIZE**3 / matmul_us
