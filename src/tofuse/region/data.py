"""Partition: a graph divided into regions (one kernel each), with a verdict per considered edge."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.analysis.alias import AliasAnalysis, MemRef
from tofuse.ir.dims import show_strides
from tofuse.ir.graph import Graph, Loc, Op, Value, show_graph
from tofuse.region.rules import Reason

REQUESTED = {True: ", as requested by fuse()", False: ", although fuse() requests it"}


@dataclass(frozen=True)
class Verdict:
    """Whether two ops were fused into one kernel, the reason, and the predicted savings.

    `bytes_saved` is memory traffic, `recompute` repeated work in additions, `predicted_us`
    microseconds saved (negative: lost). `requested`: a `fuse` hint covers both ops.
    """

    producer: str
    consumer: str
    fused: bool
    reason: Reason
    bytes_saved: int = 0
    launches_saved: int = 0
    recompute: float = 0.0
    predicted_us: float = 0.0
    loc: Loc | None = None
    requested: bool = False

    @property
    def rule(self) -> str:
        """The reason as text."""
        return f"{self.reason}{REQUESTED[self.fused] if self.requested else ''}"

    def __repr__(self) -> str:
        word = "fused" if self.fused else "not fused"
        at = f"  # {self.loc}" if self.loc else ""
        saved = f" ({self.bytes_saved} bytes saved)" if self.bytes_saved else ""
        return f"{self.producer} -> {self.consumer}: {word}: {self.rule}{saved}{at}"


@dataclass(frozen=True, eq=False)
class Region:
    """The ops of one kernel in program order.

    `outputs` are the values that other regions read or the program returns. A library region
    holds one opaque op, a kernel region none.
    """

    name: str
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]
    library: bool = False

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that are read but not defined in the region, in order of first use."""
        defined = {r for op in self.ops for r in op.results}
        return tuple(dict.fromkeys(v for op in self.ops for v in op.inputs if v not in defined))


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
    lines += [_show_region(r, graph) for r in partition.regions]
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
