"""Time calls on a GPU in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from tofuse.backends.cuda.runtime.gpu_driver import gpu_driver
from tofuse.backends.launcher import TimedCall
from tofuse.cost.thresholds import SLOW_CANDIDATE

MIN_ROUNDS, MAX_ROUNDS = 5, 100
ROUNDS_OF_ALL = 3  # before calls are left out


def interleaved_gpu_us(calls: Sequence[TimedCall], device: int, seconds: float) -> list[float]:
    """Return the median time of each call on a GPU in microseconds; the calls alternate.

    All calls together are timed for `seconds`. Slow ones are left out after a few rounds, if their
    median is `SLOW_CANDIDATE` times the fastest one's.
    """
    driver = gpu_driver()
    samples: list[list[float]] = [[] for _ in calls]
    running = list(range(len(calls)))
    with driver.on_device(device):
        driver.elapsed_us(calls)  # a warm-up
        end, rounds = time.perf_counter() + seconds, 0
        while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and time.perf_counter() < end):
            for k, us in zip(running, driver.elapsed_us([calls[k] for k in running]), strict=True):
                samples[k].append(us)
            rounds += 1
            if rounds >= ROUNDS_OF_ALL:
                medians = {k: statistics.median(samples[k]) for k in running}
                limit = SLOW_CANDIDATE * min(medians.values())
                running = [k for k in running if medians[k] <= limit]
    return [statistics.median(s) for s in samples]
