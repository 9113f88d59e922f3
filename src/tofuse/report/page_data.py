"""What the page shows, as plain data: numbers and names, with places for everything drawn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from tofuse.ir.dims import hint
from tofuse.ir.graph import Loc, Op
from tofuse.ir.graph.print import show_value_type
from tofuse.report.advice import advice, grouped
from tofuse.report.diagram import (
    Box,
    Picture,
    draw,
    op_shape,
)
from tofuse.report.model import GraphReport, KernelReport, Limits, RegionReport, Report
from tofuse.report.number_format import show_us
from tofuse.report.program_view import (
    Program,
    op_bytes,
    op_name,
    op_work,
    read_program,
    short_name,
)
from tofuse.report.timeline import Moment, op_memory, plan_memory


@dataclass(frozen=True)
class LineView:
    """A line of the user's; `place` is `model.py:12`, `file` its whole path."""

    place: str
    file: str
    code: str


@dataclass(frozen=True)
class OpView:
    """`region` is a position among the regions, `line` among the lines; -1 for none.

    A view has no region and no box: `views` says what it relabels instead.
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
class EdgeView:
    """From op to op; `meaning` and `todo` say what the rule says."""

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
class RegionView:
    """`kind` is kernel, library or pytorch (op by op, where no kernel could be made).

    `loops` and `source` are positions among the graph's texts; -1 for none.
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
class PortView:
    """An input or an output of the program."""

    name: str
    output: bool
    type: str
    nbytes: int
    box: Box


@dataclass(frozen=True)
class OtherView:
    """A verdict that no edge of the picture shows, such as one about branches."""

    rule: str
    line: int


@dataclass(frozen=True)
class RuleView:
    """Edges that were not fused for one reason, and what else it kept apart."""

    title: str
    meaning: str
    todo: str
    edges: tuple[int, ...]
    others: tuple[OtherView, ...]


@dataclass(frozen=True)
class StageView:
    """A stage of compilation, in milliseconds."""

    name: str
    ms: float


@dataclass(frozen=True)
class GraphView:
    """One compiled graph; `texts` are loops and sources, each once."""

    title: str
    notes: tuple[str, ...]
    width: float
    height: float
    lines: tuple[LineView, ...]
    ops: tuple[OpView, ...]
    edges: tuple[EdgeView, ...]
    regions: tuple[RegionView, ...]
    ports: tuple[PortView, ...]
    rules: tuple[RuleView, ...]
    plan_memory: tuple[Moment, ...]
    op_memory: tuple[Moment, ...]
    stages: tuple[StageView, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """A quantity before and after; `unit` is count, bytes or us."""

    name: str
    unit: str
    before: float
    after: float
    note: str


@dataclass(frozen=True)
class ReportView:
    """The whole page."""

    name: str
    ops: int
    kernels: int
    calls: int
    fused: int
    pairs: int
    comparisons: tuple[Comparison, ...]
    limits: Limits | None
    graphs: tuple[GraphView, ...]
    breaks: tuple[str, ...]


def view_report(report: Report) -> ReportView:
    """The page's data; graphs that PyTorch ran whole have notes and nothing else."""
    programs = [read_program(g) for g in report.graphs]
    graphs = tuple(
        _view_graph(g, _title(report, k), p)
        for k, (g, p) in enumerate(zip(report.graphs, programs, strict=True))
    )
    return ReportView(
        report.name,
        report.launches_before,
        len(report.kernels),
        report.launches_after - len(report.kernels),
        sum(v.fused for v in report.verdicts),
        len(report.verdicts),
        comparisons(report, [p for p in programs if p is not None]),
        _at_best(report.limits, graphs),
        graphs,
        tuple(report.breaks),
    )


def _at_best(limits: Limits | None, graphs: Sequence[GraphView]) -> Limits | None:
    """The limits, and no less than a launch reached: products of ours may be faster than those
    of the library, which the limit was measured with."""
    timed = [(r.work, r.measured_us) for g in graphs for r in g.regions if r.measured_us]
    reached = max((1e6 * work / us for work, us in timed), default=0.0)
    return limits and replace(limits, arithmetic=max(limits.arithmetic, reached))


def comparisons(report: Report, programs: Sequence[Program]) -> tuple[Comparison, ...]:
    """Launches, traffic, memory, and time where it was measured."""
    found = [
        Comparison(
            "Launches",
            "count",
            report.launches_before,
            report.launches_made,
            "each op by itself, then kernels, those side by side as one, and library calls",
        ),
        Comparison(
            "Memory traffic",
            "bytes",
            report.bytes_before,
            report.bytes_after,
            "read and written, each tensor once per launch",
        ),
        Comparison(
            "Memory for results",
            "bytes",
            max((m.nbytes for p in programs for m in op_memory(p)), default=0),
            max((m.nbytes for p in programs for m in plan_memory(p)), default=0),
            "most alive at once; inputs not counted",
        ),
    ]
    if report.calls is not None:
        inside = show_us(sum(r.measured_us or 0.0 for r in report.regions))
        note = (
            f"median of {report.calls.rounds} whole calls: PyTorch, then tofuse; "
            f"its launches alone take {inside}"
        )
        found.insert(0, Comparison("Time", "us", report.calls.eager, report.calls.ours, note))
    return tuple(found)


def _title(report: Report, number: int) -> str:
    """The phase; with a number where several graphs have it."""
    phases = [g.phase for g in report.graphs]
    title = phases[number].capitalize()
    if phases.count(phases[number]) > 1:
        title += f" {1 + phases[:number].count(phases[number])}"
    return title


def _view_graph(graph: GraphReport, title: str, program: Program | None) -> GraphView:
    stages = tuple(StageView(s.name, s.us / 1e3) for s in graph.stages)
    if program is None:
        return GraphView(title, graph.notes, 0, 0, (), (), (), (), (), (), (), (), stages, ())
    return _Viewer(program, draw(program)).view(title, stages)


class _Viewer:
    """Numbers ops, regions and lines, so that each names the others by position."""

    def __init__(self, program: Program, picture: Picture) -> None:
        self.program, self.picture = program, picture
        self.ops = [*program.ops, *program.views]
        self.op = {op: k for k, op in enumerate(self.ops)}
        self.region = {r.name: k for k, r in enumerate(program.report.regions)}
        self.lines: dict[Loc, int] = {}
        self.texts: dict[str, int] = {}

    def view(self, title: str, stages: tuple[StageView, ...]) -> GraphView:
        report = self.program.report
        edges = tuple(self._edge(k) for k in range(len(self.program.edges)))
        number = {
            (e.producer.results[0].name, _name(e.consumer)): k
            for k, e in enumerate(self.program.edges)
        }
        rules = []
        for g in grouped(report.verdicts):
            places = [(v, number.get((v.producer, v.consumer))) for v in g.verdicts]
            found = [k for _, k in places if k is not None]
            members = tuple(sorted(found, key=lambda k: -edges[k].nbytes))
            rest = [v for v, k in places if k is None]
            others = tuple(OtherView(f"{v.producer}: {v.rule}", self._line(v.loc)) for v in rest)
            told = g.advice
            rules.append(RuleView(told.title, told.meaning, told.todo, members, others))
        ops = tuple(self._op(op) for op in self.ops)
        kernels = {k.name: k for k in report.kernels}
        regions = tuple(self._region(r, kernels.get(r.kernel or "")) for r in report.regions)
        ports = tuple(self._port(p, box) for p, box in self.picture.ports.items())
        return GraphView(
            title,
            report.notes,
            self.picture.width,
            self.picture.height,
            tuple(self._line_view(loc) for loc in self.lines),
            ops,
            edges,
            regions,
            ports,
            tuple(rules),
            plan_memory(self.program),
            op_memory(self.program),
            stages,
            tuple(self.texts),
        )

    def _port(self, key: str, box: Box) -> PortView:
        kind, name = key.split(" ", 1)
        made = [r for op in self.program.ops for r in op.results]
        v = next(v for v in (*self.program.graph.inputs, *made) if v.name == name)
        return PortView(name, kind == "out", show_value_type(v), hint(v.type.nbytes), box)

    def _line(self, loc: Loc | None) -> int:
        return -1 if loc is None else self.lines.setdefault(loc, len(self.lines))

    def _text(self, text: str, name: str) -> int:
        """A kernel's text without its name, so that kernels that do the same share one."""
        return self.texts.setdefault(re.sub(rf"\b{name}\b", "kernel", text), len(self.texts))

    def _line_view(self, loc: Loc) -> LineView:
        place = f"{PurePath(loc.file).name}:{loc.line}"
        return LineView(place, f"{loc.file}:{loc.line}", self.program.line(loc))

    def _op(self, op: Op) -> OpView:
        region = self.program.region_of.get(op)
        return OpView(
            short_name(op),
            op_name(op),
            op_shape(op),
            tuple(r.name for r in op.results),
            ", ".join(map(show_value_type, op.results)),
            -1 if region is None else self.region[region.name],
            self._line(op.loc),
            0 if op in self.program.views else op_bytes(op),
            op_work(op),
            tuple(v.name for v in self.program.reads.get(op, ())),
            self.picture.ops.get(op),
        )

    def _edge(self, number: int) -> EdgeView:
        e = self.program.edges[number]
        told = advice(e.verdict)
        return EdgeView(
            self.op[e.producer],
            self.op[e.consumer],
            e.verdict.fused,
            e.verdict.rule,
            told.title,
            told.meaning,
            told.todo,
            show_value_type(e.producer.results[0]),
            e.nbytes,
            e.verdict.bytes_saved,
            e.verdict.predicted_us,
            self._line(e.consumer.loc),
            e.views,
            self.picture.edges[number],
        )

    def _region(self, r: RegionReport, kernel: KernelReport | None) -> RegionView:
        ops = [op for op in self.program.ops if self.program.region_of.get(op) is r]
        library = kernel is None and len(ops) == 1 and ops[0].kind == "opaque"
        return RegionView(
            r.name,
            "kernel" if kernel is not None else "library" if library else "pytorch",
            r.by,
            r.why,
            tuple(self.op[op] for op in ops),
            tuple(dict.fromkeys(self._line(op.loc) for op in ops if op.loc is not None)),
            r.nbytes,
            sum(map(op_work, ops)),
            r.predicted_us,
            r.measured_us,
            -1 if kernel is None else self._text(kernel.loops, r.name),
            -1 if kernel is None else self._text(kernel.source, r.name),
            self.picture.regions.get(r.name),
        )


def _name(op: Op) -> str:
    return op.results[0].name if op.results else op.kind
