"""Isolate regions from their program, so that they can be timed alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tofuse.analysis.alias import AliasAnalysis, view_ops
from tofuse.graph_partition import Partition
from tofuse.ir.dims import symbols_of
from tofuse.ir.graph import Graph, Op
from tofuse.ir.region import Region
from tofuse.report.repro import region_graph


def isolate_region(region: Region, part: Partition) -> Partition:
    """Return a partition of one region whose inputs have the strides they have in the program.

    Inputs that are views of one tensor stay views of one tensor.
    """
    ops = with_views(region.ops, part.graph)
    graph = region_graph(replace(region, ops=ops), part.aliases.memrefs)
    isolated = Region(region.name, graph.ops, region.outputs)
    return Partition(graph, (isolated,), AliasAnalysis(graph), (), rounded=part.rounded)


def with_views(ops: Iterable[Op], graph: Graph) -> tuple[Op, ...]:
    """Return some ops of a graph and the views through which they read, in order."""
    producers, members = graph.producers(), set(ops)
    members |= {view for op in members for v in op.inputs for view in view_ops(v, producers)}
    return tuple(op for op in graph.ops if op in members)


def without_locations(graph: Graph) -> Graph:
    """Return the graph without lines of the user's: layers that are alike are timed once."""
    return replace(graph, ops=tuple(replace(op, loc=None) for op in graph.ops))


def is_static(region: Region) -> bool:
    """Whether all sizes and strides of a region's arguments and results are numbers."""
    values = (*region.inputs, *region.outputs)
    return not any(symbols_of(d) for v in values for d in (*v.shape, *v.layout))
