"""The report as text, for terminals."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tofuse.ir.graph import Loc
from tofuse.report.advice import grouped
from tofuse.report.chrome_trace import write_trace
from tofuse.report.html import write_page
from tofuse.report.model import GraphReport, RegionReport, Report
from tofuse.report.number_format import plural, show_bytes, show_us
from tofuse.report.page_data import Comparison, comparisons
from tofuse.report.program_view import Edge, Program, read_program

WIDTH = 110  # of the plain text; in a terminal, rich takes what there is
MOST = 5  # pairs shown for one reason
MOST_ROWS = 40  # of launches


@dataclass
class ReportText(Report):
    """A report that prints itself, in colour under `rich.print`, and writes page and trace."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.graphs, report.name, report.calls, report.limits, report.breaks)

    def __str__(self) -> str:
        return show_report(self)

    __repr__ = __str__

    def __rich__(self) -> RenderableType:
        return Group(*_blocks(self))

    def save_html(self, path: str | Path) -> Path:
        """Write the report as one HTML page that needs nothing beside itself; gives its path."""
        write_page(self, Path(path))
        return Path(path)

    def save_trace(self, path: str | Path) -> Path:
        """Write a trace that Perfetto and chrome://tracing open; gives its path."""
        write_trace(self, Path(path))
        return Path(path)


def show_report(report: Report) -> str:
    """All graphs, one after the other."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, force_terminal=False)
    with console.capture() as caught:
        console.print(Group(*_blocks(report)), highlight=False)
    return "\n".join(line.rstrip() for line in caught.get().splitlines())


def _blocks(report: Report) -> Iterator[RenderableType]:
    if not report.graphs:
        yield Text(f"{report.name or 'program'}: nothing was compiled")
        yield from _breaks(report)
        return
    programs = [read_program(g) for g in report.graphs]
    calls = report.launches_after - len(report.kernels)
    yield Text.assemble(
        (f"{report.name or 'program'}: ", "bold"),
        f"{plural(report.launches_before, 'operation')} as {plural(len(report.kernels), 'kernel')}"
        f" and {plural(calls, 'library call')}",
    )
    yield from _breaks(report)
    yield _before_and_after(comparisons(report, [p for p in programs if p is not None]))
    for graph, program in zip(report.graphs, programs, strict=True):
        yield Text()
        yield from _graph(graph, program)
    if report.kernels:
        yield Text(
            "\nKernels in full: report.kernels[k].loops and .source. "
            "All of it as a page: report.save_html('report.html').",
            style="dim",
        )


def _breaks(report: Report) -> Iterator[RenderableType]:
    for line in report.breaks:
        yield Padding(Text(line, style="yellow"), (0, 0, 0, 2))


def _before_and_after(rows: tuple[Comparison, ...]) -> RenderableType:
    table = _table("", "before", "after", "")
    for row in rows:
        show = {"bytes": show_bytes, "us": show_us, "count": lambda n: str(int(n))}[row.unit]
        times = row.before / row.after if row.after else 0.0
        gain, colour = f"{times:.3g}x less", "green"
        if times <= 1.005:
            gain, colour = ("the same", "dim") if times >= 0.995 else (_more(times), "yellow")
        table.add_row(row.name.lower(), show(row.before), show(row.after), Text(gain, colour))
    return Padding(table, (0, 0, 0, 2))


def _more(times: float) -> str:
    return f"{1 / times:.3g}x more" if times else ""


def _graph(g: GraphReport, program: Program | None) -> Iterator[RenderableType]:
    yield Text.assemble(
        (f"{g.phase}", "bold"),
        f": {plural(len(g.kernels), 'kernel')}, {plural(len(g.library_calls), 'library call')}, "
        f"{show_bytes(g.bytes_before)} -> {show_bytes(g.bytes_after)}, "
        f"{g.compile_ms:.1f} ms to compile",
    )
    for shared in g.sharing:
        yield Text(shared, style="dim")
    for note in g.notes:
        yield Padding(Text(f"note: {note}", "yellow"), (0, 0, 0, 2))
    if g.peak_bytes or g.eager_peak_bytes:
        yield Padding(Text(_memory(g)), (0, 0, 0, 2))
    if program is None or not g.regions:
        return
    yield Padding(_regions(g), (0, 0, 0, 2))
    fused = [v for v in g.verdicts if v.fused]
    if fused:
        saved = sum(v.bytes_saved for v in fused)
        each = ", ".join(f"{n} {rule}" for rule, n in Counter(v.rule for v in fused).items())
        yield Padding(
            Text.assemble(
                (f"fused: {plural(len(fused), 'pair')}", "green"),
                f" ({each}); {show_bytes(saved)} of traffic saved",
            ),
            (0, 0, 0, 2),
        )
    yield from _apart(g, program)


def _memory(g: GraphReport) -> str:
    text = f"memory: at most {show_bytes(g.peak_bytes)} (eager {show_bytes(g.eager_peak_bytes)})"
    if g.phase == "forward":
        text += f"; saved for the backward {show_bytes(g.saved_bytes)}"
        text += f" (eager {show_bytes(g.eager_saved_bytes)})"
    return text + (f"; {plural(g.repeated, 'call')} repeated in the backward" if g.repeated else "")


def _regions(g: GraphReport) -> RenderableType:
    """The launches in order, those that are alike in one row."""
    predicted = any(r.predicted_us > 0 for r in g.regions)
    measured = any(r.measured_us is not None for r in g.regions)
    alike: dict[tuple[object, ...], list[RegionReport]] = {}
    for r in g.regions:
        alike.setdefault((r.ops, r.locs, r.by, r.why), []).append(r)
    columns = ["launch", "by", "ops", "memory"]
    columns += ["predicted"] if predicted else []
    columns += ["measured"] if measured else []
    table = _table(*columns, "lines")
    for rows in list(alike.values())[:MOST_ROWS]:
        first, times = rows[0], f" x{len(rows)}" if len(rows) > 1 else ""
        cells = [first.name + times, first.by]
        cells += [str(len(first.ops)), show_bytes(sum(r.nbytes for r in rows))]
        cells += [_time(sum(r.predicted_us for r in rows))] if predicted else []
        cells += [_time(sum(r.measured_us or 0.0 for r in rows))] if measured else []
        table.add_row(*map(Text, cells), Text(_lines(first)))
    if len(alike) > MOST_ROWS:
        table.add_row(Text(f"and {len(alike) - MOST_ROWS} more", "dim"))
    return table


def _time(us: float) -> str:
    return show_us(us) if us > 0 else ""


def _lines(r: RegionReport) -> str:
    """`model.py:4,5,9`, file by file."""
    files: dict[str, list[int]] = {}
    for loc in r.locs:
        files.setdefault(PurePath(loc.file).name, []).append(loc.line)
    return " ".join(
        f"{name}:{','.join(map(str, sorted(set(lines))))}" for name, lines in files.items()
    )


def _apart(g: GraphReport, program: Program) -> Iterator[RenderableType]:
    """What was not fused, by reason: what the reason means, where, and what to do."""
    groups = grouped(g.verdicts)
    edges = {id(e.verdict): e for e in program.edges}
    total = sum(len(group.verdicts) for group in groups)
    if total:
        yield Padding(Text(f"not fused: {plural(total, 'pair')}", "yellow"), (0, 0, 0, 2))
    for group in groups:
        rules = {v.rule for v in group.verdicts}
        title = Text.assemble((f"{group.advice.title} ({len(group.verdicts)})", "bold"))
        if len(rules) == 1 and rules != {group.advice.title}:
            title.append(f": {rules.pop()}", "dim")
        yield Padding(title, (0, 0, 0, 4))
        yield Padding(Text(group.advice.meaning), (0, 0, 0, 6))
        large = sorted(group.verdicts, key=lambda v: -edges[id(v)].nbytes if id(v) in edges else 0)
        shown = large[:MOST]
        pairs = [f"{v.producer} -> {v.consumer}" for v in shown]
        table = Table.grid(padding=(0, 3, 0, 0), expand=True)
        table.add_column(no_wrap=True, min_width=max(map(len, pairs)))
        table.add_column(no_wrap=True, min_width=7, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # what does not fit goes
        for v, pair in zip(shown, pairs, strict=True):
            rule = f"{v.rule}  " if rules else ""
            place = Text(rule + _place(v.loc, program))
            table.add_row(Text(pair), _value(edges.get(id(v))), place)
        yield Padding(table, (0, 0, 0, 6))
        if len(group.verdicts) > MOST:
            yield Padding(Text(f"and {len(group.verdicts) - MOST} more", "dim"), (0, 0, 0, 8))
        if group.advice.todo:
            yield Padding(Text.assemble(("to do: ", "bold"), group.advice.todo), (0, 0, 0, 6))


def _value(edge: Edge | None) -> str:
    return "" if edge is None else show_bytes(edge.nbytes)


def _place(loc: Loc | None, program: Program) -> str:
    if loc is None:
        return ""
    return f"{PurePath(loc.file).name}:{loc.line}  {program.line(loc)}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for name in columns:
        right = name in ("ops", "memory", "predicted", "measured", "before", "after")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=False)
    return table
