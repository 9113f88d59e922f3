"""Sort ops topologically."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tofuse.analysis.alias import has_effect
from tofuse.ir.graph import Op


def toposort(ops: Sequence[Op]) -> tuple[Op, ...] | None:
    """Return the ops in an order that defines every value before its use; None on a cycle.

    Among ready ops the first in the given order comes first. No op moves across an op with a side
    effect.
    """
    producers = {r: k for k, op in enumerate(ops) for r in op.results}
    segments = _effect_segments(ops)
    unmet = [0] * len(ops)
    users: list[list[int]] = [[] for _ in ops]
    for k, op in enumerate(ops):
        for p in {producers[v] for v in op.inputs if v in producers}:
            if segments[p] > segments[k]:
                return None
            if segments[p] == segments[k]:
                unmet[k] += 1
                users[p].append(k)
    sorted_ops: list[Op] = []
    ready = [(segments[k], k) for k, count in enumerate(unmet) if count == 0]
    heapq.heapify(ready)
    while ready:
        _, k = heapq.heappop(ready)
        sorted_ops.append(ops[k])
        for user in users[k]:
            unmet[user] -= 1
            if unmet[user] == 0:
                heapq.heappush(ready, (segments[user], user))
    return tuple(sorted_ops) if len(sorted_ops) == len(ops) else None


def _effect_segments(ops: Sequence[Op]) -> list[int]:
    """Return a number per op that increases at each op with a side effect."""
    segments, current = [], 0
    for op in ops:
        current += has_effect(op)
        segments.append(current)
        current += has_effect(op)
    return segments
