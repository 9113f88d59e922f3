"""Fuse siblings: kernels that read the same large tensor read it once as one kernel."""

from __future__ import annotations

from tofuse.cost.thresholds import MAX_SIBLINGS, MIN_SHARED_ELEMENTS
from tofuse.fusion.partition.grow import Growth
from tofuse.ir.dims import size_hint
from tofuse.ir.fusion_hints import fusion_requested


def fuse_siblings(growth: Growth) -> None:
    """Merge kernels that read the same large tensor, or that the user asks to fuse."""
    graph, group_of = growth.index.graph, growth.groups.group_of
    for v in (*graph.inputs, *(r for op in graph.ops for r in op.results)):
        is_large = size_hint(v.type.numel) >= MIN_SHARED_ELEMENTS
        readers = [u for u in growth.index.readers[v] if not group_of[u].library]
        for u in readers[1 : 1 + MAX_SIBLINGS]:
            separate = group_of[readers[0]] is not group_of[u]
            if separate and (is_large or fusion_requested(readers[0], u)):
                growth.try_merge(readers[0], u)
