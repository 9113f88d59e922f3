"""Partition -> Partition: start collectives early, wait for them late, and run work meanwhile."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from tofuse.analysis.alias import is_collective, is_communication, is_wait
from tofuse.analysis.reachability import reachable
from tofuse.cost.memory_traffic import value_bytes
from tofuse.cost.thresholds import MAX_COLLECTIVE_OVERLAP_EXTRA_PEAK_SHARE, MIN_ORDER_SAVING
from tofuse.fusion.order_regions import successors_of
from tofuse.fusion.region_liveness import RegionLiveness, is_effectful
from tofuse.graph_partition import Partition
from tofuse.ir.region import Region


def overlap_collectives(
    part: Partition, releasable_inputs: frozenset[str] = frozenset()
) -> Partition:
    """Order regions so that collectives run at the same time as other work.

    Collectives keep their order. The peak of memory may grow by the share
    `MAX_COLLECTIVE_OVERLAP_EXTRA_PEAK_SHARE` of it, or by `MIN_ORDER_SAVING` bytes.
    `releasable_inputs` are as for `order_regions`.
    """
    order = list(part.regions)
    if not any(is_collective(r.ops[0]) for r in order):
        return part
    liveness = RegionLiveness(part, releasable_inputs)
    peak = liveness.peak(order)[0]
    limit = peak + max(MIN_ORDER_SAVING, int(MAX_COLLECTIVE_OVERLAP_EXTRA_PEAK_SHARE * peak))
    windows = _windows(liveness, order)
    candidates = [_in_order(windows, order), list(order)]
    _share_work(windows, _feeding(liveness, order))
    for candidate in (_in_order(windows, order), *candidates):
        overlapped = _wait_late(liveness, candidate)
        if overlapped != order and liveness.peak(overlapped)[0] <= limit:
            return replace(part, regions=tuple(overlapped))
    return part


@dataclass
class _Window:
    """A collective's part of the order.

    `start` has what the collective needs, and last the region that starts it. The regions in
    `overlapped` run after that, while the collective runs.
    """

    start: list[Region]
    overlapped: list[Region] = field(default_factory=list)


def _windows(liveness: RegionLiveness, order: Sequence[Region]) -> list[_Window]:
    """Return a window for each collective, in their order.

    A collective starts right after the regions that it needs. Then each region runs whose operands
    are computed, unless the next collective can start at once: then that one starts first.
    """
    number = {r: k for k, r in enumerate(order)}
    pending = {r: len(liveness.predecessors[r]) for r in order}
    successors = successors_of(liveness, number)
    ready = [(number[r], r) for r in order if not pending[r]]  # sorted, so a heap
    done: set[Region] = set()

    def run(r: Region) -> Region:
        done.add(r)
        for s in successors[r]:
            pending[s] -= 1
            if not pending[s]:
                heapq.heappush(ready, (number[s], s))
        return r

    collectives = [r for r in order if is_collective(r.ops[0])]
    windows: list[_Window] = []
    for k, collective in enumerate(collectives):
        needed = _missing(liveness, collective, done)
        windows.append(_Window([run(r) for r in sorted(needed, key=number.__getitem__)]))
        if any(_missing(liveness, r, done) == {r} for r in collectives[k + 1 : k + 2]):
            continue
        while ready:
            _, r = heapq.heappop(ready)
            if r not in done and not is_communication(r.ops[0]):
                windows[-1].overlapped.append(run(r))
    return windows


def _in_order(windows: Sequence[_Window], order: Sequence[Region]) -> list[Region]:
    """Return the regions of all windows in turn. The regions outside of them come last."""
    early = [r for w in windows for r in (*w.start, *w.overlapped)]
    done = set(early)
    return [*early, *(r for r in order if r not in done)]


def _missing(liveness: RegionLiveness, region: Region, done: set[Region]) -> set[Region]:
    """Return those regions that are not done, of a region and all that it needs."""
    return set(reachable({region} - done, lambda r: liveness.predecessors[r] - done))


def _share_work(windows: Sequence[_Window], feeding: set[Region]) -> None:
    """Move overlapped regions from each window into the empty ones that follow it.

    All get about the same number of bytes. A region that a later collective needs is not moved.
    """
    for k, window in enumerate(windows):
        idle = list(takewhile(lambda w: not w.overlapped, windows[k + 1 :]))
        movable = [r for r in window.overlapped if r not in feeding]
        if not idle or len(movable) < 2:
            continue
        window.overlapped = [r for r in window.overlapped if r in feeding]
        sharing = [window, *idle]
        total, passed = sum(map(_bytes, movable)), 0
        for r in movable:
            index = passed * len(sharing) // max(total, 1)
            sharing[min(index, len(idle))].overlapped.append(r)
            passed += _bytes(r)


def _bytes(r: Region) -> int:
    return sum(map(value_bytes, (*r.inputs, *r.outputs)))


def _feeding(liveness: RegionLiveness, order: Sequence[Region]) -> set[Region]:
    """Return all regions that any collective needs, directly or through others."""
    feeding: set[Region] = set()
    for r in reversed(order):
        if r in feeding or is_collective(r.ops[0]):
            feeding |= liveness.predecessors[r]
    return feeding


def _wait_late(liveness: RegionLiveness, order: Sequence[Region]) -> list[Region]:
    """Move each wait for a collective to just before its first reader, or before a write.

    The regions between the start and the wait then run while the collective runs.
    """
    number = {r: k for k, r in enumerate(order)}
    writes = [number[r] for r in order if is_effectful(r)]
    last = len(order)

    def position(r: Region) -> float:
        if not is_wait(r.ops[0]):
            return number[r]
        readers = [number[s] for v in r.outputs for s in liveness.readers.get(v, ())]
        barriers = [k for k in writes if k > number[r]]
        return min([*readers, *barriers, last]) - 0.5

    return sorted(order, key=lambda r: (position(r), number[r]))
