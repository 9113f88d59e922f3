"""Partition: a graph divided into regions (one kernel each), with a verdict per considered edge."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.analysis.alias import AliasAnalysis, MemRef
from tofuse.ir.dims import show_strides
from tofuse.ir.graph import Graph, show_graph
from tofuse.ir.region import Region, Verdict, show_region, show_verdict


@dataclass(frozen=True, eq=False)
class Partition:
    """A graph divided into regions in a legal execution order.

    - `aliases`: who shares memory with whom in the graph.
    - `fusions`: the merges of groups of ops, in the order in which they were done.
    - `rejected_hints`: a verdict for each edge that a `fuse` hint covers and that is not fused.
    - `rounded`: the names of values that kernels round to half precision, as memory would.
    """

    graph: Graph
    regions: tuple[Region, ...]
    aliases: AliasAnalysis
    verdicts: tuple[Verdict, ...]
    fusions: tuple[Verdict, ...] = ()
    rejected_hints: tuple[Verdict, ...] = ()
    rounded: frozenset[str] = frozenset()


def show_partition(partition: Partition) -> str:
    """Return the text of the graph, then a line per region, memory reference and verdict.

    A value that owns its memory, with the strides of the graph, has no memory reference line.
    """
    graph = partition.graph
    lines = [show_graph(graph)]
    lines += [show_region(r, graph) for r in partition.regions]
    for v in graph.values():
        memref = partition.aliases.memrefs.get(v)
        if memref is None:
            lines.append(f"no_memref {v.name}")
        elif memref != MemRef(v, 0, v.layout):
            at = f"{memref.root.name} + {memref.offset}"
            lines.append(f"memref {v.name} = {at} {show_strides(memref.strides)}")
    for v, memref in partition.aliases.slices.items():
        lines.append(f"concat_slice {v.name} = {memref.root.name} + {memref.offset}")
    if partition.rounded:
        lines.append(" ".join(["rounded", *sorted(partition.rounded)]))
    return "\n".join([*lines, *map(show_verdict, partition.verdicts)])
