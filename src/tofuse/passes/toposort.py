"""Brings ops into an order in which every value is defined before it is read."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tofuse.ir.graph import Op
from tofuse.passes.dead_code import has_effect


def in_order(ops: Sequence[Op]) -> tuple[Op, ...] | None:
    """The ops with as few of them moved as possible; None if they wait for one another.

    An op with an effect stays behind all that stand before it, and before all behind it.
    """
    producers = {r: k for k, op in enumerate(ops) for r in op.results}
    segment = _segments(ops)
    waits = [0] * len(ops)
    users: list[list[int]] = [[] for _ in ops]
    for k, op in enumerate(ops):
        for p in {producers[v] for v in op.inputs if v in producers}:
            if segment[p] > segment[k]:
                return None
            if segment[p] == segment[k]:
                waits[k] += 1
                users[p].append(k)
    ordered: list[Op] = []
    ready = [(segment[k], k) for k, count in enumerate(waits) if count == 0]
    heapq.heapify(ready)
    while ready:
        _, k = heapq.heappop(ready)
        ordered.append(ops[k])
        for user in users[k]:
            waits[user] -= 1
            if waits[user] == 0:
                heapq.heappush(ready, (segment[user], user))
    return tuple(ordered) if len(ordered) == len(ops) else None


def _segments(ops: Sequence[Op]) -> list[int]:
    """A number per op that grows at each effect."""
    segments, current = [], 0
    for op in ops:
        current += has_effect(op)
        segments.append(current)
        current += has_effect(op)
    return segments
