"""The program of a graph report for readers: ops that compute, and the verdicts between them."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from functools import cached_property

from tofuse.analysis.alias import is_view
from tofuse.cost.library import library_flops
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Graph, Loc, Op, Value
from tofuse.ir.region import Region, Verdict
from tofuse.ops.table import OPS, Pattern
from tofuse.report.model import GraphReport, MemorySample
from tofuse.report.region_report import op_name


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
    """A program split into ops that compute (`ops`) and `views`."""

    report: GraphReport

    @property
    def graph(self) -> Graph:
        return self.report.partition.graph

    @cached_property
    def views(self) -> tuple[Op, ...]:
        return tuple(op for op in self.graph.ops if is_view(op))

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return tuple(op for op in self.graph.ops if not is_view(op))

    @cached_property
    def region_of(self) -> dict[Op, Region]:
        """The region of each op that computes."""
        return {op: r for r in self.report.partition.regions for op in r.ops if not is_view(op)}

    @cached_property
    def input_reads(self) -> dict[Op, tuple[Value, ...]]:
        """The program's inputs that each op reads, directly or through views."""
        inputs = set(self.graph.inputs)
        sources = {op: dict.fromkeys(self._viewed(v)[0] for v in op.inputs) for op in self.ops}
        return {op: tuple(v for v in values if v in inputs) for op, values in sources.items()}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """An edge for each verdict on two ops; views are skipped to find the producer."""
        verdicts = {(v.producer, v.consumer): v for v in self.report.verdicts}
        producer_of = self.graph.producers()
        found: list[Edge] = []
        for op in self.ops:
            sources: dict[Op, tuple[str, ...]] = {}
            for value, views in map(self._viewed, op.inputs):
                if value in producer_of:
                    sources.setdefault(producer_of[value], views)
            consumer = op.results[0].name if op.results else op.kind
            for source, views in sources.items():
                verdict = verdicts.get((source.results[0].name, consumer))
                if verdict is not None:
                    found.append(Edge(source, op, verdict, views))
        return tuple(found)

    def _viewed(self, v: Value) -> tuple[Value, tuple[str, ...]]:
        """Return the value behind the views that make `v`, and their kinds."""
        kinds: tuple[str, ...] = ()
        while (view := self._view_of.get(v)) is not None:
            v, kinds = view.inputs[0], (view.kind, *kinds)
        return v, kinds

    @cached_property
    def _view_of(self) -> dict[Value, Op]:
        return {op.result: op for op in self.views}

    def op_memory(self) -> tuple[MemorySample, ...]:
        """Return one sample for each op, as if each ran by itself and dead values were freed."""
        base = self.report.partition.aliases.base
        returned = {base(v) for v in self.graph.outputs if v is not None}
        last_reader = {base(v): op for op in self.graph.ops for v in op.inputs}
        samples: list[MemorySample] = []
        dying: dict[Op, int] = {}  # the bytes that die with each op
        live = 0
        for op in self.graph.ops:
            for r in (r for r in op.results if base(r) is r):
                nbytes = size_hint(r.type.nbytes)
                live += nbytes
                if r not in returned:
                    last = last_reader.get(r, op)
                    dying[last] = dying.get(last, 0) + nbytes
            if not is_view(op):
                samples.append(MemorySample(short_name(op), live))
            live -= dying.pop(op, 0)
        return tuple(samples)


def source_line(loc: Loc) -> str:
    """Return the text of a user's line, or "" if its file cannot be read."""
    return loc.code or linecache.getline(loc.file, loc.line).strip()


def short_name(op: Op) -> str:
    """Return the name without namespace and overload: `mm` for `aten.mm.default`."""
    parts = op_name(op).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def op_work(op: Op) -> float:
    """Return the op's arithmetic in additions; 0 for library operators of unknown cost."""
    if op.kind in ("opaque", "contract"):
        return library_flops(op)
    elements_of = op.inputs if OPS[op.kind].pattern is Pattern.REDUCE else op.results
    return sum(OPS[op.kind].cost * size_hint(v.type.numel) for v in elements_of[:1])
