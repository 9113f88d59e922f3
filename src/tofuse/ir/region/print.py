"""Print a partition in the text form that `ir.region.parse` accepts."""

from __future__ import annotations

from tofuse.analysis.alias import MemRef
from tofuse.ir.dims import show_dim, show_strides
from tofuse.ir.graph import Graph
from tofuse.ir.graph.print import show_graph
from tofuse.ir.region.data import Partition, Region, Verdict


def show_partition(partition: Partition) -> str:
    """Return the text of the graph, then a line per region, memory reference and verdict.

    A value that owns its memory, with the strides of the graph, has no memory reference line.
    """
    graph = partition.graph
    lines = [show_graph(graph)]
    lines += [_show_region(r, graph) for r in partition.regions]
    for v in graph.values():
        memref = partition.aliases.memrefs.get(v)
        if memref is None:
            lines.append(f"no_memref {v.name}")
        elif memref != MemRef(v, 0, v.layout):
            at = f"{memref.root.name} + {show_dim(memref.offset)}"
            lines.append(f"memref {v.name} = {at} {show_strides(memref.strides)}")
    for v, memref in partition.aliases.slices.items():
        lines.append(f"concat_slice {v.name} = {memref.root.name} + {show_dim(memref.offset)}")
    if partition.rounded:
        lines.append(" ".join(["rounded", *sorted(partition.rounded)]))
    return "\n".join([*lines, *map(show_verdict, partition.verdicts)])


def show_verdict(v: Verdict) -> str:
    """Return one line, such as

    `edge v0 -> v1 fused: same loops; bytes 64; launches 1; recompute 0.0; us 5.0 # at m.py:3`.
    """
    word = "fused" if v.fused else "not fused"
    counts = f"bytes {v.bytes_saved}; launches {v.launches_saved}; recompute {v.recompute!r}"
    at = f" # at {v.loc.file}:{v.loc.line}" if v.loc else ""
    return (
        f"edge {v.producer} -> {v.consumer} {word}: {v.rule}; {counts}; us {v.predicted_us!r}{at}"
    )


def _show_region(region: Region, graph: Graph) -> str:
    order = {op: k for k, op in enumerate(graph.ops)}
    # an op is named by its first result, or by its position if it has none
    ops = " ".join(op.results[0].name if op.results else f"#{order[op]}" for op in region.ops)
    outputs = " ".join(v.name for v in region.outputs)
    return f"{'call' if region.library else 'kernel'} {region.name}: {ops} -> {outputs}".rstrip()
