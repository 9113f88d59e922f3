"""Sort ops topologically."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from tofuse.analysis.alias import has_effect
from tofuse.ir.graph import Op


def toposort(ops: Sequence[Op]) -> tuple[Op, ...] | None:
    """Return the ops in an order that defines every value before its use; None on a cycle.

    Among ready ops the first in the given order comes first. No op moves across an op with a side
    effect.
    """
    producers = {r: k for k, op in enumerate(ops) for r in op.results}
    sources = [{producers[v] for v in op.inputs if v in producers} for op in ops]
    segments = _effect_segments(ops)
    if any(segments[p] > segments[k] for k, before in enumerate(sources) for p in before):
        return None
    sorter = TopologicalSorter(dict(enumerate(sources)))
    try:
        sorter.prepare()
    except CycleError:
        return None
    sorted_ops: list[Op] = []
    ready: list[int] = []
    while sorter.is_active():
        for k in sorter.get_ready():
            heapq.heappush(ready, k)
        first = heapq.heappop(ready)
        sorted_ops.append(ops[first])
        sorter.done(first)
    return tuple(sorted_ops)


def _effect_segments(ops: Sequence[Op]) -> list[int]:
    """Return a number per op that increases at each op with a side effect."""
    segments, current = [], 0
    for op in ops:
        current += has_effect(op)
        segments.append(current)
        current += has_effect(op)
    return segments
