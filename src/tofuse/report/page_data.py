"""The data of the HTML page as JSON: items refer to ops, regions, lines and texts by index.

An index of -1 stands for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tofuse.cost.memory_traffic import op_bytes
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Loc, Op, show_value_type
from tofuse.report.advice import ADVICE, Advice, group_by_advice
from tofuse.report.call_times import MachineLimits
from tofuse.report.collective_report import Collective
from tofuse.report.comparison import comparisons
from tofuse.report.diagram import Item, Point, Port, draw_diagram, op_shape
from tofuse.report.json_record import Record
from tofuse.report.model import Report
from tofuse.report.program_view import Edge, ProgramView, op_work, short_name, source_line
from tofuse.report.region_report import RegionReport, op_name


def build_page_data(report: Report) -> Record:
    """Return the page's data."""
    programs = [ProgramView(g) for g in report.graphs]
    return {
        "name": report.title,
        "ops": report.launches_before,
        "kernels": len(report.kernels),
        "calls": len(report.library_calls),
        "fused": sum(v.fused for v in report.verdicts),
        "pairs": len(report.verdicts),
        "comparisons": [asdict(c) for c in comparisons(report, programs)],
        "limits": None if report.limits is None else _attained_limits(report.limits, report),
        "graphs": [
            _GraphDataBuilder(p).build(_graph_title(report, k)) for k, p in enumerate(programs)
        ],
        "breaks": report.breaks,
    }


def _attained_limits(limits: MachineLimits, report: Report) -> Record:
    """Raise the arithmetic limit to the fastest launch.

    The limit is measured with a library product, and generated products may be faster.
    """
    attained = [1e6 * _work(r) / r.measured_us for r in report.regions if r.measured_us]
    return asdict(limits) | {"arithmetic": max([limits.arithmetic, *attained])}


def _graph_title(report: Report, number: int) -> str:
    """Return the graph's phase, with a number if several graphs have the same phase."""
    phases = [g.phase for g in report.graphs]
    title = phases[number].capitalize()
    if phases.count(phases[number]) > 1:
        title += f" {1 + phases[:number].count(phases[number])}"
    return title


def _work(r: RegionReport) -> float:
    return sum(map(op_work, r.region.ops))


class _GraphDataBuilder:
    """Builds the data of one graph, and numbers its ops, regions, lines and texts."""

    def __init__(self, program: ProgramView) -> None:
        self.program, self.report = program, program.report
        self.diagram = draw_diagram(program)
        self.ops = [*program.ops, *program.views]
        self.op_number = {op: k for k, op in enumerate(self.ops)}
        self.region_number = {r.region: k for k, r in enumerate(self.report.regions)}
        self.line_numbers: dict[Loc, int] = {}
        self.text_numbers: dict[str, int] = {}

    def build(self, title: str) -> Record:
        edges = zip(self.program.edges, self.diagram.edges, strict=True)
        built: Record = {
            "title": title,
            "notes": self.report.notes,
            "width": self.diagram.width,
            "height": self.diagram.height,
            "edges": [self._edge(edge, points) for edge, points in edges],
            "rules": self._rules(),
            "ops": list(map(self._op, self.ops)),
            "regions": list(map(self._region, self.report.regions)),
            "ports": [self._port(p) for p in self.diagram.boxes if isinstance(p, Port)],
            "plan_memory": [asdict(m) for m in self.report.live_memory()],
            "op_memory": [asdict(m) for m in self.program.op_memory()],
            "collectives": list(map(self._collective, self.report.collectives)),
            "stages": [{"name": s.name, "ms": s.us / 1e3} for s in self.report.stages],
        }
        lines = [_line(loc) for loc in self.line_numbers]
        return built | {"lines": lines, "texts": list(self.text_numbers)}

    def _line_number(self, loc: Loc | None) -> int:
        return -1 if loc is None else self.line_numbers.setdefault(loc, len(self.line_numbers))

    def _text_number(self, text: str) -> int:
        """Number a kernel's text: equal kernels share one text."""
        return self.text_numbers.setdefault(text, len(self.text_numbers))

    def _op(self, op: Op) -> Record:
        """Return an op with the program inputs that it reads; a view has no region and no box."""
        region = self.program.region_of.get(op)
        return {
            "name": short_name(op),
            "target": op_name(op),
            "shape": op_shape(op),
            "values": [r.name for r in op.results],
            "type": ", ".join(map(show_value_type, op.results)),
            "region": -1 if region is None else self.region_number[region],
            "line": self._line_number(op.loc),
            "nbytes": 0 if region is None else op_bytes(op),
            "work": op_work(op),
            "reads": [v.name for v in self.program.input_reads.get(op, ())],
            "box": self._box(op),
        }

    def _edge(self, e: Edge, points: Sequence[Point]) -> Record:
        """Return an edge with its verdict; `value` is the type of the value passed."""
        return {
            "source": self.op_number[e.producer],
            "target": self.op_number[e.consumer],
            "fused": e.verdict.fused,
            "rule": e.verdict.rule,
            **_advice(ADVICE[e.verdict.reason.rule]),
            "value": show_value_type(e.producer.results[0]),
            "nbytes": e.nbytes,
            "saved": e.verdict.bytes_saved,
            "us": e.verdict.predicted_us,
            "line": self._line_number(e.consumer.loc),
            "views": e.views,
            "points": points,
        }

    def _rules(self) -> list[Record]:
        """Return the edges that were not fused, by advice, and verdicts that have no edge."""
        edges = self.program.edges
        number = {e.verdict: k for k, e in enumerate(edges)}
        rules: list[Record] = []
        for advice, verdicts in group_by_advice(self.report.verdicts):
            numbered = [(v, number.get(v)) for v in verdicts]
            drawn = [k for _, k in numbered if k is not None]
            others: list[Record] = [
                {"rule": f"{v.producer}: {v.rule}", "line": self._line_number(v.loc)}
                for v, k in numbered
                if k is None
            ]
            members = sorted(drawn, key=lambda k: -edges[k].nbytes)
            rules.append(_advice(advice) | {"edges": members, "other_verdicts": others})
        return rules

    def _region(self, r: RegionReport) -> Record:
        ops = [op for op in r.region.ops if op in self.program.region_of]
        kernel = next((k for k in self.report.kernels if k.name == r.kernel), None)
        library = len(ops) == 1 and ops[0].kind == "opaque"
        return {
            "name": r.name,
            "kind": "kernel" if kernel is not None else "library" if library else "pytorch",
            "executor": r.executor_label,
            "why": r.why,
            "ops": [self.op_number[op] for op in ops],
            "lines": list(
                dict.fromkeys(self._line_number(op.loc) for op in ops if op.loc is not None)
            ),
            "nbytes": r.nbytes,
            "work": _work(r),
            "predicted_us": r.predicted_us,
            "measured_us": r.measured_us,
            "loops": -1 if kernel is None else self._text_number(kernel.loops),
            "source": -1 if kernel is None else self._text_number(kernel.source),
            "box": self._box(r.region),
        }

    def _collective(self, c: Collective) -> Record:
        return {
            "name": c.name,
            "group": c.group,
            "operand_bytes": c.operand_bytes,
            "result_bytes": c.result_bytes,
            "overlapped": [self.region_number[r.region] for r in c.overlapped],
            "overlapped_us": c.overlapped_us,
            "line": self._line_number(c.loc),
        }

    def _port(self, port: Port) -> Record:
        v = port.value
        return {
            "name": v.name,
            "output": port.output,
            "type": show_value_type(v),
            "nbytes": size_hint(v.type.nbytes),
            "box": self._box(port),
        }

    def _box(self, item: Item) -> Record | None:
        box = self.diagram.boxes.get(item)
        return None if box is None else asdict(box)


def _advice(advice: Advice) -> Record:
    return {"title": advice.title, "meaning": advice.meaning, "todo": advice.todo}


def _line(loc: Loc) -> Record:
    return {"place": loc.place, "file": repr(loc), "code": source_line(loc)}
