"""How many threads pay off for some work."""

from __future__ import annotations

from tofuse.cost.thresholds import WORK_PER_THREAD


def threads_worth(elements: int, work: float) -> int:
    """Return how many threads pay off for `elements` points of `work` each."""
    return max(1, int(elements * work / WORK_PER_THREAD))
