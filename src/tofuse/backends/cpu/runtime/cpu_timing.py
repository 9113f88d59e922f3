"""Time calls on the CPU in turn."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tofuse.backends.launcher import TimedCall

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
