"""Measure times: of a plan's steps, of calls, and the limits of this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from tofuse.backends.cpu.runtime.cpu_timing import fastest_us
from tofuse.backends.cuda.runtime.cuda import synchronize
from tofuse.torch_internals.dispatch import disable_current_modes

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


@contextmanager
def real_tensors(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Disable fake tensors, gradients and changes of the random states, as for a measurement.

    The states are those of the CPU and of the GPUs among `devices`.
    """
    gpus = [d.index for d in devices if d.index is not None]
    with disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=gpus):
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


def machine_limits() -> tuple[float, float]:
    """Return the bytes per second of a large copy (read plus written), and the floating-point
    operations per second of a float32 matrix product."""
    source = torch.ones(COPY_BYTES // 4)
    target = torch.empty_like(source)
    copy_us = fastest_us(lambda: target.copy_(source), seconds=0)
    a = torch.ones(MATRIX_SIZE, MATRIX_SIZE)
    matmul_us = fastest_us(lambda: torch.mm(a, a), seconds=0)
    return 2e6 * COPY_BYTES / copy_us, 2e6 * MATRIX_SIZE**3 / matmul_us
