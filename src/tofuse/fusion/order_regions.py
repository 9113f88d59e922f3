"""Partition -> Partition: order the regions for the lowest peak memory."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tofuse.cost.memory_traffic import value_bytes
from tofuse.cost.thresholds import MIN_ORDER_SAVING
from tofuse.fusion.region_liveness import RegionLiveness, is_effectful
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Value
from tofuse.ir.region import Region


def order_regions(part: Partition, releasable_inputs: frozenset[str] = frozenset()) -> Partition:
    """Keep program order unless freeing early or allocating late lowers the peak.

    In program order, adjacent regions find each other's values in the cache. `releasable_inputs`
    names inputs that only these regions hold: the last reader frees them.
    """
    liveness = RegionLiveness(part, releasable_inputs)
    best, lowest = list(part.regions), liveness.peak(part.regions)[0]
    early = _free_early(liveness)
    if (early_peak := liveness.peak(early)[0]) < lowest:
        best, lowest = early, early_peak
    late = _allocate_late(liveness, best)
    if liveness.peak(late)[0] <= lowest - MIN_ORDER_SAVING:
        best = late
    return part if best == list(part.regions) else replace(part, regions=tuple(best))


def successors_of(
    liveness: RegionLiveness, number: Mapping[Region, int]
) -> dict[Region, list[Region]]:
    """Return the regions that each region precedes, in order of their numbers."""
    successors: dict[Region, list[Region]] = {r: [] for r in number}
    for r in sorted(number, key=number.__getitem__):
        for p in sorted(liveness.predecessors[r], key=number.__getitem__):
            successors[p].append(r)
    return successors


def _free_early(liveness: RegionLiveness) -> list[Region]:
    """Return the order that always runs the ready region which leaves the least memory held.

    Ties go by program order. The growth of a region only falls, when it becomes the last reader
    of a value or its result's memory is allocated; then the region is queued again.
    """
    number = {r: k for k, r in enumerate(liveness.part.regions)}
    pending_reads = {v: len(rs) for v, rs in liveness.readers.items()}
    pending_predecessors = {r: len(ps) for r, ps in liveness.predecessors.items()}
    successors = successors_of(liveness, number)
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
