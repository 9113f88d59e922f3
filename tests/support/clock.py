"""How fast this processor runs Python, to hold times against."""

import time

STEPS = 300_000


def plain_loop() -> float:
    """Processor seconds of a loop of 300,000 steps of plain Python: 0.017 to 0.06."""
    best = float("inf")
    for _ in range(3):
        seen: dict[int, int] = {}
        start = time.process_time()
        for k in range(STEPS):
            seen[k & 1023] = seen.get(k & 511, 0) + k
        best = min(best, time.process_time() - start)
    return best
