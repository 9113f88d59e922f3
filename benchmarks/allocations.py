"""Bytes that PyTorch's allocator hands out while something runs: at most, and at the end."""

from collections.abc import Callable
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class Allocations:
    """Beyond what was held before: at most, and still held when the results were there."""

    peak: int
    left: int


def allocations(run: Callable[[], object]) -> Allocations:
    """Of one run, whose results live until it is measured."""
    # without acc_events the first profile of a process warns
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, profile_memory=True, acc_events=True) as measured:
        results = run()
    events = [e for e in measured.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    del results
    return Allocations(most, held)
