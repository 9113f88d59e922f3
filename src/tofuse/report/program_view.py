"""The program of a graph report, parsed from its text, with a region and verdicts for each op."""

from __future__ import annotations

import linecache
import math
import re
from dataclasses import dataclass

from tofuse.analysis.alias import is_view
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Graph, Loc, Op, Value
from tofuse.ir.graph.parse import parse_graph
from tofuse.ir.region import Verdict
from tofuse.ops.table import Pattern, opdef
from tofuse.report.model import GraphReport, RegionReport


@dataclass(frozen=True, eq=False)
class Edge:
    """A verdict with its two ops and the kinds of the views between them."""

    producer: Op
    consumer: Op
    verdict: Verdict
    views: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of the producer's first result."""
        return sum(size_hint(v.type.nbytes) for v in self.producer.results[:1])


@dataclass(frozen=True, eq=False)
class ProgramView:
    """A program split into ops that compute (`ops`) and `views`.

    `edges` join computing ops. `input_reads` maps each op to the program's inputs that it reads,
    directly or through views. `code` maps file and line to the user's source line.
    """

    report: GraphReport
    graph: Graph
    ops: tuple[Op, ...]
    views: tuple[Op, ...]
    region_of: dict[Op, RegionReport]
    edges: tuple[Edge, ...]
    input_reads: dict[Op, tuple[Value, ...]]
    code: dict[tuple[str, int], str]

    def line(self, loc: Loc) -> str:
        """Return the text of a user's line, or "" if its file cannot be read."""
        known = self.code.get((loc.file, loc.line), "")
        return known or loc.code or linecache.getline(loc.file, loc.line).strip()


def parse_program(report: GraphReport) -> ProgramView | None:
    """Parse the program of a report; None if PyTorch runs all of it and there is no graph."""
    if not report.graph:
        return None
    graph = parse_graph(report.graph)
    region_of_value = {v: r for r in report.regions for v in r.values}
    views = tuple(op for op in graph.ops if is_view(op))
    ops = tuple(op for op in graph.ops if not is_view(op))
    region_of = {
        op: r for op in ops for r in [_region(op, region_of_value, report)] if r is not None
    }
    code = {(loc.file, loc.line): loc.code for r in report.regions for loc in r.locs}
    edges = _edges(graph, ops, report)
    return ProgramView(report, graph, ops, views, region_of, edges, _reads(graph, ops, views), code)


def _reads(graph: Graph, ops: tuple[Op, ...], views: tuple[Op, ...]) -> dict[Op, tuple[Value, ...]]:
    input_of = {v: v for v in graph.inputs}
    for op in views:
        if op.inputs and op.inputs[0] in input_of:
            input_of[op.result] = input_of[op.inputs[0]]
    return {op: tuple(dict.fromkeys(input_of[v] for v in op.inputs if v in input_of)) for op in ops}


def _region(
    op: Op, region_of_value: dict[str, RegionReport], report: GraphReport
) -> RegionReport | None:
    for r in op.results:
        if r.name in region_of_value:
            return region_of_value[r.name]
    # an op without results, such as one that only writes, is a region by itself
    matches = [r for r in report.regions if not r.values and r.ops == (op_name(op),)]
    return matches[0] if matches else None


def _edges(graph: Graph, ops: tuple[Op, ...], report: GraphReport) -> tuple[Edge, ...]:
    """Return an edge for each verdict; views are skipped to find the producer of a value."""
    verdicts = {(v.producer, v.consumer): v for v in report.verdicts}
    producer_of: dict[Value, tuple[Op, tuple[str, ...]]] = {}
    for op in graph.ops:
        for r in op.results:
            if not is_view(op):
                producer_of[r] = (op, ())
            elif op.inputs and op.inputs[0] in producer_of:
                source, views_between = producer_of[op.inputs[0]]
                producer_of[r] = (source, (*views_between, op.kind))
    found: list[Edge] = []
    for op in ops:
        sources: dict[Op, tuple[str, ...]] = {}
        for v in op.inputs:
            if v in producer_of:
                sources.setdefault(producer_of[v][0], producer_of[v][1])
        name = op.results[0].name if op.results else op.kind
        for source, views_between in sources.items():
            verdict = verdicts.get((source.results[0].name, name))
            if verdict is not None:
                found.append(Edge(source, op, verdict, views_between))
    return tuple(found)


def op_name(op: Op) -> str:
    """Return an op's kind, or the operator's name for a library call."""
    return str(op.attr("target")) if op.kind == "opaque" else op.kind


def short_name(op: Op) -> str:
    """Return the name without namespace and overload: `mm` for `aten.mm.default`."""
    parts = op_name(op).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def op_bytes(op: Op) -> int:
    """Return the bytes that the op alone reads, each tensor once, and writes."""
    return sum(size_hint(v.type.nbytes) for v in (*dict.fromkeys(op.inputs), *op.results))


def op_work(op: Op) -> float:
    """Return the op's arithmetic in additions; 0 for library operators of unknown cost."""
    if op.kind == "opaque":
        return _library_work(op)
    elements_of = op.inputs if opdef(op.kind).pattern is Pattern.REDUCE else op.results
    return sum(opdef(op.kind).cost * size_hint(v.type.numel) for v in elements_of[:1])


def _library_work(op: Op) -> float:
    """Return the work of products and convolutions: two operations per multiply-add."""
    name = short_name(op)
    out = math.prod(size_hint(d) for d in op.results[0].shape) if op.results else 0
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        left = op.inputs[1 if "add" in name else 0]
        return 2.0 * out * size_hint(left.shape[-1])
    if name in ("convolution", "_convolution") and len(op.inputs) > 1:
        return 2.0 * out * math.prod(size_hint(d) for d in op.inputs[1].shape[1:])
    return 0.0


def plan_name(value: str) -> str:
    """Return the variable name of a value in the plan."""
    return "t_" + re.sub(r"\W", "_", value)
