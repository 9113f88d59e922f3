"""The text of a partition: graph, regions, places, verdicts. `ir.region.parse` reads it back."""

from __future__ import annotations

from tofuse.ir.dims import show_dim
from tofuse.ir.graph import Graph
from tofuse.ir.graph.print import show_graph
from tofuse.ir.region.data import (
    Partition,
    Region,
    Strided,
    Verdict,
)


def show_partition(part: Partition) -> str:
    """The graph, then a line a region, a place other than a value's own, and a verdict.

    `parse_partition` reads it back.
    """
    lines = [show_graph(part.graph)]
    lines += [_show_region(r, part.graph) for r in part.regions]
    values = (*part.graph.inputs, *(r for op in part.graph.ops for r in op.results))
    for v in values:
        place = part.storage.get(v)
        if place is None:
            lines.append(f"nowhere {v.name}")
        elif place != Strided(v, 0, v.layout):
            strides = ",".join(map(show_dim, place.strides))
            offset = show_dim(place.offset)
            lines.append(f"place {v.name} = {place.root.name} + {offset} {{{strides}}}")
    for v, part_of in part.parts.items():
        lines.append(f"part {v.name} = {part_of.root.name} + {show_dim(part_of.offset)}")
    if part.halves:
        lines.append(" ".join(["rounded", *sorted(part.halves)]))
    return "\n".join([*lines, *map(show_verdict, part.verdicts)])


def show_verdict(v: Verdict) -> str:
    """`edge v0 -> v1 fused: same loops; bytes 64; launches 1; recompute 0.0; us 5.0 # at m.py:3`"""
    word = "fused" if v.fused else "not fused"
    counts = f"bytes {v.bytes_saved}; launches {v.launches_saved}; recompute {v.recompute!r}"
    at = f" # at {v.loc.file}:{v.loc.line}" if v.loc else ""
    return (
        f"edge {v.producer} -> {v.consumer} {word}: {v.rule}; {counts}; us {v.predicted_us!r}{at}"
    )


def _show_region(region: Region, graph: Graph) -> str:
    order = {op: k for k, op in enumerate(graph.ops)}
    # an op goes by its result; one without, by its number
    ops = " ".join(op.results[0].name if op.results else f"#{order[op]}" for op in region.ops)
    outputs = " ".join(v.name for v in region.outputs)
    return f"{'call' if region.library else 'kernel'} {region.name}: {ops} -> {outputs}".rstrip()
