"""The speed of this processor, as a unit for timed tests."""

import gc
import time
from collections.abc import Callable

STEPS = 300_000


def loop_seconds() -> float:
    """Return the processor seconds of a Python loop of 300,000 steps, typically 0.017 to 0.07."""
    table: dict[int, int] = {}
    start = time.process_time()
    for k in range(STEPS):
        table[k & 1023] = table.get(k & 511, 0) + k
    return time.process_time() - start


def relative_time(run: Callable[[], object], enough: float, tries: int = 8) -> float:
    """Return the processor time of `run` relative to `loop_seconds`: the minimum of `tries`.

    The loop is timed immediately before and after, because a shared processor's speed changes by
    the second. It stops early at a time of `enough` or less.
    """
    best = float("inf")
    gc.collect()
    gc.disable()  # garbage of other tests
    try:
        before = loop_seconds()
        for _ in range(tries):
            start = time.process_time()
            run()
            taken, after = time.process_time() - start, loop_seconds()
            best, before = min(best, 2 * taken / (before + after)), after
            if best <= enough:
                break
    finally:
        gc.enable()
    return best
