"""Partition -> Partition: order the regions for the lowest peak memory, collectives for overlap."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from tofuse.analysis.alias import communicates, is_collective, is_wait
from tofuse.analysis.memory_traffic import value_bytes
from tofuse.cost.thresholds import MAX_OVERLAP_MEMORY, MIN_ORDER_SAVING
from tofuse.fusion.region_liveness import RegionLiveness, is_effectful
from tofuse.ir.graph import Value
from tofuse.ir.region import Partition, Region


def order_regions(part: Partition, releasable_inputs: frozenset[str] = frozenset()) -> Partition:
    """Keep program order unless freeing early or allocating late lowers the peak.

    In program order, adjacent regions find each other's values in the cache. `releasable_inputs`
    names inputs that only these regions hold: the last reader frees them. Then collectives start
    early and are waited for late, unless that raises the peak by a few percent.
    """
    liveness = RegionLiveness(part, releasable_inputs)
    best, lowest = list(part.regions), liveness.peak(part.regions)[0]
    early = _free_early(liveness)
    if (early_peak := liveness.peak(early)[0]) < lowest:
        best, lowest = early, early_peak
    late = _allocate_late(liveness, best)
    if liveness.peak(late)[0] <= lowest - MIN_ORDER_SAVING:
        best, lowest = late, liveness.peak(late)[0]
    overlapped = _wait_late(liveness, _start_early(liveness, best))
    most = lowest + max(MIN_ORDER_SAVING, int(MAX_OVERLAP_MEMORY * lowest))
    if overlapped != best and liveness.peak(overlapped)[0] <= most:
        best = overlapped
    return part if best == list(part.regions) else replace(part, regions=tuple(best))


def _start_early(liveness: RegionLiveness, order: Sequence[Region]) -> list[Region]:
    """Start each collective as soon as its operands are computed, and then run what is ready.

    So each collective has work beside it, such as the gradients of weights whose order is free.
    """
    number = {r: k for k, r in enumerate(order)}
    pending = {r: len(liveness.predecessors[r]) for r in order}
    successors = _successors(liveness, number)
    ready = [(number[r], r) for r in order if not pending[r]]  # sorted, so a heap
    done: set[Region] = set()

    def run(r: Region) -> Region:
        done.add(r)
        for s in successors[r]:
            pending[s] -= 1
            if not pending[s]:
                heapq.heappush(ready, (number[s], s))
        return r

    windows: list[_Window] = []
    for collective in filter(lambda r: is_collective(r.ops[0]), order):
        needed = _missing(liveness, collective, done)
        windows.append(_Window([run(r) for r in sorted(needed, key=number.__getitem__)]))
        while ready:
            _, r = heapq.heappop(ready)
            if r not in done and not communicates(r.ops[0]):
                windows[-1].beside.append(run(r))
    _share_work(windows, _feeding(liveness, order))
    early = [r for w in windows for r in (*w.start, *w.beside)]
    return [*early, *(r for r in order if r not in done)]


def _successors(
    liveness: RegionLiveness, number: Mapping[Region, int]
) -> dict[Region, list[Region]]:
    """Return the regions that each region precedes, in order of their numbers."""
    successors: dict[Region, list[Region]] = {r: [] for r in number}
    for r in sorted(number, key=number.__getitem__):
        for p in sorted(liveness.predecessors[r], key=number.__getitem__):
            successors[p].append(r)
    return successors


def _missing(liveness: RegionLiveness, region: Region, done: Collection[Region]) -> set[Region]:
    """Return a region and all it needs, directly or not, that is not done."""
    missing: set[Region] = set()
    pending = [region]
    while pending:
        r = pending.pop()
        if r not in missing and r not in done:
            missing.add(r)
            pending += liveness.predecessors[r]
    return missing


@dataclass
class _Window:
    """What must run to start a collective, with its start last, and what then runs beside it."""

    start: list[Region]
    beside: list[Region] = field(default_factory=list)


def _share_work(windows: Sequence[_Window], feeding: set[Region]) -> None:
    """Let windows with nothing beside have a part of what the window before has, by bytes.

    What feeds a later collective stays where it is.
    """
    for k, window in enumerate(windows):
        idle = list(takewhile(lambda w: not w.beside, windows[k + 1 :]))
        free = [r for r in window.beside if r not in feeding]
        if not idle or len(free) < 2:
            continue
        window.beside = [r for r in window.beside if r in feeding]
        sharing = [window, *idle]
        total, passed = sum(map(_bytes, free)), 0
        for r in free:
            sharing[min(passed * len(sharing) // max(total, 1), len(idle))].beside.append(r)
            passed += _bytes(r)


def _bytes(r: Region) -> int:
    return sum(map(value_bytes, (*r.inputs, *r.outputs)))


def _feeding(liveness: RegionLiveness, order: Sequence[Region]) -> set[Region]:
    """Return the regions that a collective needs, directly or not."""
    feeding: set[Region] = set()
    for r in reversed(order):
        if r in feeding or is_collective(r.ops[0]):
            feeding |= liveness.predecessors[r]
    return feeding


def _wait_late(liveness: RegionLiveness, order: Sequence[Region]) -> list[Region]:
    """Move each wait for a collective to just before its first reader, or before a write.

    What stands between the two then runs beside the collective.
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


def _free_early(liveness: RegionLiveness) -> list[Region]:
    """Return the order that always runs the ready region which leaves the least memory held.

    Ties go by program order. The growth of a region only falls, when it becomes the last reader
    of a value or its result's memory is allocated; then the region is queued again.
    """
    number = {r: k for k, r in enumerate(liveness.part.regions)}
    pending_reads = {v: len(rs) for v, rs in liveness.readers.items()}
    pending_predecessors = {r: len(ps) for r, ps in liveness.predecessors.items()}
    successors = _successors(liveness, number)
    slice_writers = {v: [r for r in number if v in liveness.writes[r]] for v in liveness.shared}
    allocated: set[Value] = set()

    def entry(r: Region) -> tuple[int, int, Region]:
        """Return a region after the bytes by which running it now raises the bytes held."""
        new = [v for v in liveness.writes[r] if v not in allocated]
        kept = sum(value_bytes(v) for v in new if v in liveness.returned or v in liveness.readers)
        last_reads = [v for v in liveness.reads[r] if pending_reads[v] == 1]
        freed = sum(value_bytes(v) for v in last_reads if v not in liveness.returned)
        return kept - freed, number[r], r

    queue = [entry(r) for r in number if not pending_predecessors[r]]
    heapq.heapify(queue)
    order: list[Region] = []
    done: set[Region] = set()
    while queue:
        _, _, r = heapq.heappop(queue)
        if r in done:
            continue
        done.add(r)
        order.append(r)
        changed = list(successors[r])
        for v in (v for v in liveness.writes[r] if v in slice_writers and v not in allocated):
            changed += [u for u in slice_writers[v] if u not in done]
        allocated.update(liveness.writes[r])
        for successor in successors[r]:
            pending_predecessors[successor] -= 1
        for v in liveness.reads[r]:
            pending_reads[v] -= 1
            if pending_reads[v] == 1:
                changed += [u for u in liveness.readers[v] if u not in done]
        for u in changed:
            if not pending_predecessors[u]:
                heapq.heappush(queue, entry(u))
    return order


def _allocate_late(liveness: RegionLiveness, order: Sequence[Region]) -> list[Region]:
    """Move regions that free nothing to just before their first successor."""
    number = {r: k for k, r in enumerate(order)}
    last = {v: max(rs, key=number.__getitem__) for v, rs in liveness.readers.items()}
    position = dict(number)
    first_successor: dict[Region, int] = {}  # its position
    for r in reversed(order):
        frees = any(last[v] is r and v not in liveness.returned for v in liveness.reads[r])
        if not frees and not is_effectful(r) and liveness.shared.isdisjoint(liveness.writes[r]):
            position[r] = first_successor.get(r, number[r])
        for p in liveness.predecessors[r]:
            first_successor[p] = min(position[r], first_successor.get(p, position[r]))
    return sorted(order, key=lambda r: (position[r], number[r]))
