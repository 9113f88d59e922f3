"""Memory that PyTorch's allocator hands out while a function runs: the peak, and what remains."""

from collections.abc import Callable
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class Allocations:
    """Bytes above those held before: at the peak, and while the results are still alive."""

    peak: int
    remaining: int


def allocations(run: Callable[[], object]) -> Allocations:
    """Measure one run; its results live until the measurement ends."""
    # without acc_events the first profile of a process emits a warning
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, profile_memory=True, acc_events=True) as measured:
        results = run()
    events = [e for e in measured.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    del results
    return Allocations(peak, held)
