"""The data of the HTML page: plain records of numbers and names, with a box for each drawn item."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Loc, Op
from tofuse.ir.graph.print import show_value_type
from tofuse.report.advice import advice_for, group_by_advice
from tofuse.report.comparison import Comparison, comparisons
from tofuse.report.diagram import (
    Box,
    Diagram,
    draw_diagram,
    op_shape,
)
from tofuse.report.memory_timeline import MemorySample, op_memory, plan_memory
from tofuse.report.model import GraphReport, KernelReport, MachineLimits, RegionReport, Report
from tofuse.report.program_view import (
    ProgramView,
    op_bytes,
    op_name,
    op_work,
    parse_program,
    short_name,
)


@dataclass(frozen=True)
class LineData:
    """A line of user code: `place` is `model.py:12`, `file` has the full path."""

    place: str
    file: str
    code: str


@dataclass(frozen=True)
class OpData:
    """An op; `region` and `line` are indices into the graph's regions and lines, -1 for none.

    `reads` are the program inputs that it reads. A view has no region and no box.
    """

    name: str
    target: str
    shape: str
    values: tuple[str, ...]
    type: str
    region: int
    line: int
    nbytes: int
    work: float
    reads: tuple[str, ...]
    box: Box | None


@dataclass(frozen=True)
class EdgeData:
    """An edge between two ops with its verdict; `title`, `meaning` and `todo` explain the rule.

    `value` is the type of the value passed, `us` the predicted saving of fusion, `views` the kinds
    of the views between the ops. `source`, `target` and `line` are indices.
    """

    source: int
    target: int
    fused: bool
    rule: str
    title: str
    meaning: str
    todo: str
    value: str
    nbytes: int
    saved: int
    us: float
    line: int
    views: tuple[str, ...]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class RegionData:
    """A region; `kind` is "kernel", "library", or "pytorch" for ops without a kernel.

    `ops`, `lines`, `loops` and `source` are indices into the graph's ops, lines and texts, -1 for
    none.
    """

    name: str
    kind: str
    executor: str
    why: str
    ops: tuple[int, ...]
    lines: tuple[int, ...]
    nbytes: int
    work: float
    predicted_us: float
    measured_us: float | None
    loops: int
    source: int
    box: Box | None


@dataclass(frozen=True)
class PortData:
    """An input or output of the program."""

    name: str
    output: bool
    type: str
    nbytes: int
    box: Box


@dataclass(frozen=True)
class OtherVerdictData:
    """A verdict without an edge in the diagram, such as one about branches."""

    rule: str
    line: int


@dataclass(frozen=True)
class RuleData:
    """Edges (by index) that were not fused under one rule, and the rule's other verdicts."""

    title: str
    meaning: str
    todo: str
    edges: tuple[int, ...]
    other_verdicts: tuple[OtherVerdictData, ...]


@dataclass(frozen=True)
class StageData:
    """The time of a compilation stage in milliseconds."""

    name: str
    ms: float


@dataclass(frozen=True)
class GraphData:
    """One compiled graph; `texts` holds each distinct loop nest and source once."""

    title: str
    notes: tuple[str, ...]
    width: float
    height: float
    lines: tuple[LineData, ...]
    ops: tuple[OpData, ...]
    edges: tuple[EdgeData, ...]
    regions: tuple[RegionData, ...]
    ports: tuple[PortData, ...]
    rules: tuple[RuleData, ...]
    plan_memory: tuple[MemorySample, ...]
    op_memory: tuple[MemorySample, ...]
    stages: tuple[StageData, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class PageData:
    """All data of the page."""

    name: str
    ops: int
    kernels: int
    calls: int
    fused: int
    pairs: int
    comparisons: tuple[Comparison, ...]
    limits: MachineLimits | None
    graphs: tuple[GraphData, ...]
    breaks: tuple[str, ...]


def build_page_data(report: Report) -> PageData:
    """Return the page's data; a graph that PyTorch runs whole has only notes and stages."""
    programs = [parse_program(g) for g in report.graphs]
    graphs = tuple(
        _graph_data(g, _graph_title(report, k), p)
        for k, (g, p) in enumerate(zip(report.graphs, programs, strict=True))
    )
    return PageData(
        report.name,
        report.launches_before,
        len(report.kernels),
        report.launches_after - len(report.kernels),
        sum(v.fused for v in report.verdicts),
        len(report.verdicts),
        comparisons(report, [p for p in programs if p is not None]),
        _attained_limits(report.limits, graphs),
        graphs,
        tuple(report.breaks),
    )


def _attained_limits(
    limits: MachineLimits | None, graphs: Sequence[GraphData]
) -> MachineLimits | None:
    """Raise the arithmetic limit to the fastest launch.

    The limit is measured with a library product, and generated products may be faster.
    """
    timed = [(r.work, r.measured_us) for g in graphs for r in g.regions if r.measured_us]
    fastest = max((1e6 * work / us for work, us in timed), default=0.0)
    return limits and replace(limits, arithmetic=max(limits.arithmetic, fastest))


def _graph_title(report: Report, number: int) -> str:
    """Return the graph's phase, with a number if several graphs have the same phase."""
    phases = [g.phase for g in report.graphs]
    title = phases[number].capitalize()
    if phases.count(phases[number]) > 1:
        title += f" {1 + phases[:number].count(phases[number])}"
    return title


def _graph_data(graph: GraphReport, title: str, program: ProgramView | None) -> GraphData:
    stages = tuple(StageData(s.name, s.us / 1e3) for s in graph.stages)
    if program is None:
        return GraphData(title, graph.notes, 0, 0, (), (), (), (), (), (), (), (), stages, ())
    return _GraphDataBuilder(program, draw_diagram(program)).build(title, stages)


class _GraphDataBuilder:
    """Builds the data of one graph, and numbers its ops, regions, lines and texts."""

    def __init__(self, program: ProgramView, diagram: Diagram) -> None:
        self.program, self.diagram = program, diagram
        self.ops = [*program.ops, *program.views]
        self.op_number = {op: k for k, op in enumerate(self.ops)}
        self.region_number = {r.name: k for k, r in enumerate(program.report.regions)}
        self.line_numbers: dict[Loc, int] = {}
        self.text_numbers: dict[str, int] = {}

    def build(self, title: str, stages: tuple[StageData, ...]) -> GraphData:
        report = self.program.report
        edges = tuple(self._edge_data(k) for k in range(len(self.program.edges)))
        number = {
            (e.producer.results[0].name, _consumer_name(e.consumer)): k
            for k, e in enumerate(self.program.edges)
        }
        rules = []
        for g in group_by_advice(report.verdicts):
            numbered = [(v, number.get((v.producer, v.consumer))) for v in g.verdicts]
            drawn = [k for _, k in numbered if k is not None]
            members = tuple(sorted(drawn, key=lambda k: -edges[k].nbytes))
            other_verdicts = tuple(
                OtherVerdictData(f"{v.producer}: {v.rule}", self._line_number(v.loc))
                for v, k in numbered
                if k is None
            )
            a = g.advice
            rules.append(RuleData(a.title, a.meaning, a.todo, members, other_verdicts))
        ops = tuple(self._op_data(op) for op in self.ops)
        kernels = {k.name: k for k in report.kernels}
        regions = tuple(self._region_data(r, kernels.get(r.kernel or "")) for r in report.regions)
        ports = tuple(self._port_data(p, box) for p, box in self.diagram.ports.items())
        return GraphData(
            title,
            report.notes,
            self.diagram.width,
            self.diagram.height,
            tuple(self._line_data(loc) for loc in self.line_numbers),
            ops,
            edges,
            regions,
            ports,
            tuple(rules),
            plan_memory(self.program),
            op_memory(self.program),
            stages,
            tuple(self.text_numbers),
        )

    def _port_data(self, key: str, box: Box) -> PortData:
        kind, name = key.split(" ", 1)
        made = [r for op in self.program.ops for r in op.results]
        v = next(v for v in (*self.program.graph.inputs, *made) if v.name == name)
        return PortData(name, kind == "out", show_value_type(v), size_hint(v.type.nbytes), box)

    def _line_number(self, loc: Loc | None) -> int:
        return -1 if loc is None else self.line_numbers.setdefault(loc, len(self.line_numbers))

    def _text_number(self, text: str, name: str) -> int:
        """Number a kernel's text, its name replaced: equal kernels share one text."""
        return self.text_numbers.setdefault(
            re.sub(rf"\b{name}\b", "kernel", text), len(self.text_numbers)
        )

    def _line_data(self, loc: Loc) -> LineData:
        place = f"{PurePath(loc.file).name}:{loc.line}"
        return LineData(place, f"{loc.file}:{loc.line}", self.program.line(loc))

    def _op_data(self, op: Op) -> OpData:
        region = self.program.region_of.get(op)
        return OpData(
            short_name(op),
            op_name(op),
            op_shape(op),
            tuple(r.name for r in op.results),
            ", ".join(map(show_value_type, op.results)),
            -1 if region is None else self.region_number[region.name],
            self._line_number(op.loc),
            0 if op in self.program.views else op_bytes(op),
            op_work(op),
            tuple(v.name for v in self.program.input_reads.get(op, ())),
            self.diagram.ops.get(op),
        )

    def _edge_data(self, number: int) -> EdgeData:
        e = self.program.edges[number]
        advice = advice_for(e.verdict)
        return EdgeData(
            self.op_number[e.producer],
            self.op_number[e.consumer],
            e.verdict.fused,
            e.verdict.rule,
            advice.title,
            advice.meaning,
            advice.todo,
            show_value_type(e.producer.results[0]),
            e.nbytes,
            e.verdict.bytes_saved,
            e.verdict.predicted_us,
            self._line_number(e.consumer.loc),
            e.views,
            self.diagram.edges[number],
        )

    def _region_data(self, r: RegionReport, kernel: KernelReport | None) -> RegionData:
        ops = [op for op in self.program.ops if self.program.region_of.get(op) is r]
        library = kernel is None and len(ops) == 1 and ops[0].kind == "opaque"
        return RegionData(
            r.name,
            "kernel" if kernel is not None else "library" if library else "pytorch",
            r.executor_label,
            r.why,
            tuple(self.op_number[op] for op in ops),
            tuple(dict.fromkeys(self._line_number(op.loc) for op in ops if op.loc is not None)),
            r.nbytes,
            sum(map(op_work, ops)),
            r.predicted_us,
            r.measured_us,
            -1 if kernel is None else self._text_number(kernel.loops, r.name),
            -1 if kernel is None else self._text_number(kernel.source, r.name),
            self.diagram.regions.get(r.name),
        )


def _consumer_name(op: Op) -> str:
    return op.results[0].name if op.results else op.kind
