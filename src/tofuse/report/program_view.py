"""A graph report's program with everything known of each op, read back from the report's text."""

from __future__ import annotations

import linecache
import math
import re
from dataclasses import dataclass

from tofuse.ir.dims import hint
from tofuse.ir.graph import Graph, Loc, Op, Value
from tofuse.ir.graph.parse import parse_graph
from tofuse.ir.region import Verdict
from tofuse.ops.table import Pattern, opdef
from tofuse.report.model import GraphReport, RegionReport


@dataclass(frozen=True, eq=False)
class Edge:
    """A verdict, with the ops it is about and the views the value passes on its way."""

    producer: Op
    consumer: Op
    verdict: Verdict
    views: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Of the value that runs along the edge."""
        return sum(hint(v.type.nbytes) for v in self.producer.results[:1])


@dataclass(frozen=True, eq=False)
class Program:
    """Ops that compute (`ops`) and views, the region of each op, and the edges between ops.

    `reads` are the program's inputs that an op reads, through views too.
    """

    report: GraphReport
    graph: Graph
    ops: tuple[Op, ...]
    views: tuple[Op, ...]
    region_of: dict[Op, RegionReport]
    edges: tuple[Edge, ...]
    reads: dict[Op, tuple[Value, ...]]
    code: dict[tuple[str, int], str]

    def line(self, loc: Loc) -> str:
        """The text of a user's line; nothing where its file cannot be read."""
        known = self.code.get((loc.file, loc.line), "")
        return known or loc.code or linecache.getline(loc.file, loc.line).strip()


def read_program(report: GraphReport) -> Program | None:
    """The program of a report; None where PyTorch ran the whole of it and there is no graph."""
    if not report.graph:
        return None
    graph = parse_graph(report.graph)
    by_value = {v: r for r in report.regions for v in r.values}
    views = tuple(op for op in graph.ops if is_view(op))
    ops = tuple(op for op in graph.ops if not is_view(op))
    region_of = {op: r for op in ops for r in [_region(op, by_value, report)] if r is not None}
    code = {(loc.file, loc.line): loc.code for r in report.regions for loc in r.locs}
    edges = _edges(graph, ops, report)
    return Program(report, graph, ops, views, region_of, edges, _reads(graph, ops, views), code)


def _reads(graph: Graph, ops: tuple[Op, ...], views: tuple[Op, ...]) -> dict[Op, tuple[Value, ...]]:
    root = {v: v for v in graph.inputs}
    for op in views:
        if op.inputs and op.inputs[0] in root:
            root[op.result] = root[op.inputs[0]]
    return {op: tuple(dict.fromkeys(root[v] for v in op.inputs if v in root)) for op in ops}


def _region(op: Op, by_value: dict[str, RegionReport], report: GraphReport) -> RegionReport | None:
    for r in op.results:
        if r.name in by_value:
            return by_value[r.name]
    # an op without results, such as one that only writes, is a region by itself
    alone = [r for r in report.regions if not r.values and r.ops == (op_name(op),)]
    return alone[0] if alone else None


def _edges(graph: Graph, ops: tuple[Op, ...], report: GraphReport) -> tuple[Edge, ...]:
    """The verdicts with their ops; a value is followed through views to the op that made it."""
    verdicts = {(v.producer, v.consumer): v for v in report.verdicts}
    made: dict[Value, tuple[Op, tuple[str, ...]]] = {}
    for op in graph.ops:
        for r in op.results:
            if not is_view(op):
                made[r] = (op, ())
            elif op.inputs and op.inputs[0] in made:
                source, through = made[op.inputs[0]]
                made[r] = (source, (*through, op.kind))
    found: list[Edge] = []
    for op in ops:
        seen: dict[Op, tuple[str, ...]] = {}
        for v in op.inputs:
            if v in made:
                seen.setdefault(made[v][0], made[v][1])
        name = op.results[0].name if op.results else op.kind
        for source, through in seen.items():
            verdict = verdicts.get((source.results[0].name, name))
            if verdict is not None:
                found.append(Edge(source, op, verdict, through))
    return tuple(found)


def is_view(op: Op) -> bool:
    """Whether an op only relabels elements: it has no verdict and no region of its own."""
    return opdef(op.kind).pattern in (Pattern.VIEW, Pattern.BROADCAST)


def op_name(op: Op) -> str:
    """Its kind; the operator's name for what PyTorch runs."""
    return str(op.attr("target")) if op.kind == "opaque" else op.kind


def short_name(op: Op) -> str:
    """`mm` for `aten.mm.default`."""
    parts = op_name(op).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def op_bytes(op: Op) -> int:
    """What the op by itself reads, each tensor once, and writes."""
    return sum(hint(v.type.nbytes) for v in (*dict.fromkeys(op.inputs), *op.results))


def op_work(op: Op) -> float:
    """Its arithmetic, in additions; 0 for operators whose arithmetic is not known here."""
    if op.kind == "opaque":
        return _library_work(op)
    measure = op.inputs if opdef(op.kind).pattern is Pattern.REDUCE else op.results
    return sum(opdef(op.kind).cost * hint(v.type.numel) for v in measure[:1])


def _library_work(op: Op) -> float:
    """Two operations for every product that is summed."""
    name = short_name(op)
    out = math.prod(hint(d) for d in op.results[0].shape) if op.results else 0
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        left = op.inputs[1 if "add" in name else 0]
        return 2.0 * out * hint(left.shape[-1])
    if name in ("convolution", "_convolution") and len(op.inputs) > 1:
        return 2.0 * out * math.prod(hint(d) for d in op.inputs[1].shape[1:])
    return 0.0


def variable(value: str) -> str:
    """The name that a plan gives a value."""
    return "t_" + re.sub(r"\W", "_", value)
