"""The report as text for terminals."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tofuse.ir.graph import Loc
from tofuse.report.advice import group_by_advice
from tofuse.report.chrome_trace import trace_text, trace_text_of_ranks
from tofuse.report.comparison import Comparison, comparisons
from tofuse.report.html import page_text
from tofuse.report.json_record import Record, report_record
from tofuse.report.model import GraphReport, Report
from tofuse.report.number_format import plural, show_bytes, show_ratio, show_us
from tofuse.report.plain_text import PrintsAsText
from tofuse.report.program_view import ProgramView, source_line
from tofuse.report.region_report import RegionReport

MAX_PAIRS_PER_RULE = 5
MAX_LAUNCH_ROWS = 40
SIZES = ("ops", "memory", "operand", "result")  # columns of numbers
FRAME = "width: 100%; height: 720px; border: 1px solid #8884"
INDENT = {columns: (0, 0, 0, columns) for columns in (2, 4, 6, 8)}


@dataclass(repr=False)
class ReportText(PrintsAsText, Report):
    """A report that prints as text, in colour under `rich.print`, and saves a page and a trace."""

    def __rich__(self) -> RenderableType:
        return Group(*_blocks(self))

    def as_dict(self) -> Record:
        """Return the report as data for JSON; a key ends in its unit."""
        return report_record(self)

    def _repr_html_(self) -> str:
        """Return the page inside a frame, for notebooks."""
        page = html.escape(page_text(self))
        return f'<iframe srcdoc="{page}" style="{FRAME}" sandbox="allow-scripts"></iframe>'

    def save_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML page; return its path."""
        return _save(page_text(self), Path(path))

    def save_trace(self, path: str | Path, *, all_ranks: bool = False) -> Path:
        """Write a trace for Perfetto and chrome://tracing; return its path.

        With `all_ranks`, every rank of the default process group must call it, and rank 0 writes
        one file with the traces of all.
        """
        text = trace_text_of_ranks(self) if all_ranks else trace_text(self)
        return _save(text, Path(path)) if text else Path(path)


def _save(text: str, path: Path) -> Path:
    """Write a file, creating folders as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _blocks(report: Report) -> Iterator[RenderableType]:
    if not report.graphs:
        yield Text(f"{report.title}: nothing was compiled")
        yield from _breaks(report)
        return
    programs = [ProgramView(g) for g in report.graphs]
    calls = len(report.library_calls)
    yield Text.assemble(
        (f"{report.title}: ", "bold"),
        f"{plural(report.launches_before, 'operation')} as {plural(len(report.kernels), 'kernel')}"
        f" and {plural(calls, 'library call')}",
    )
    yield from _breaks(report)
    yield _comparison_table(comparisons(report, programs))
    for program in programs:
        yield Text()
        yield from _graph(program)
    if report.kernels:
        yield Text(
            "\nKernel code: report.kernels[k].loops and .source. "
            "The full report as a page: report.save_html('report.html').",
            style="dim",
        )


def _breaks(report: Report) -> Iterator[RenderableType]:
    for line in report.decisions:
        yield Padding(Text(line, style="dim"), INDENT[2])
    for line in (*report.breaks, *(f"another variant: {why}" for why in report.variants)):
        yield Padding(Text(line, style="yellow"), INDENT[2])


def _comparison_table(rows: tuple[Comparison, ...]) -> RenderableType:
    table = _table("", "before", "after", "")
    for row in rows:
        show = {"bytes": show_bytes, "us": show_us, "count": lambda n: str(int(n))}[row.unit]
        ratio = row.before / row.after if row.after else 0.0
        change, colour = f"{show_ratio(ratio)} less", "green"
        if ratio <= 1.005:
            change, colour = ("the same", "dim") if ratio >= 0.995 else (_increase(ratio), "yellow")
        table.add_row(row.name.lower(), show(row.before), show(row.after), Text(change, colour))
    return Padding(table, INDENT[2])


def _increase(ratio: float) -> str:
    return f"{show_ratio(1 / ratio)} more" if ratio else ""


def _graph(program: ProgramView) -> Iterator[RenderableType]:
    g = program.report
    yield Text.assemble(
        (f"{g.phase}", "bold"),
        f": {plural(len(g.kernels), 'kernel')}, {plural(len(g.library_calls), 'library call')}, "
        f"{show_bytes(g.bytes_before)} -> {show_bytes(g.bytes_after)}, "
        f"{g.compile_ms:.1f} ms to compile",
    )
    for shared in g.shared_launches:
        yield Text(shared, style="dim")
    for note in g.notes:
        yield Padding(Text(f"note: {note}", "yellow"), INDENT[2])
    if g.peak_bytes or g.eager_peak_bytes:
        yield Padding(Text(_memory_line(g)), INDENT[2])
    if not g.regions:
        return
    yield Padding(_launch_table(g), INDENT[2])
    yield from _collectives(g)
    fused = [v for v in g.verdicts if v.fused]
    if fused:
        saved = sum(v.bytes_saved for v in fused)
        rules = ", ".join(f"{n} {rule}" for rule, n in Counter(v.rule for v in fused).items())
        yield Padding(
            Text.assemble(
                (f"fused: {plural(len(fused), 'pair')}", "green"),
                f" ({rules}); {show_bytes(saved)} of memory traffic saved",
            ),
            INDENT[2],
        )
    yield from _not_fused(program)


def _memory_line(g: GraphReport) -> str:
    text = f"peak memory: {show_bytes(g.peak_bytes)} (eager {show_bytes(g.eager_peak_bytes)})"
    if g.phase == "forward":
        text += f"; saved for the backward {show_bytes(g.saved_bytes)}"
        text += f" (eager {show_bytes(g.eager_saved_bytes)})"
    return text + (
        f"; {plural(g.recomputed, 'call')} recomputed in the backward" if g.recomputed else ""
    )


def _launch_table(g: GraphReport) -> RenderableType:
    """Return the table of launches in order; equal launches share a row."""
    times = {name: us for name, us in _TIMES.items() if any(map(us, g.regions))}
    rows_by_content: dict[tuple[object, ...], list[RegionReport]] = {}
    for r in g.regions:
        rows_by_content.setdefault((r.ops, r.locs, r.executor_label, r.why), []).append(r)
    table = _table("launch", "executor", "ops", "memory", *times, "lines")
    for rows in list(rows_by_content.values())[:MAX_LAUNCH_ROWS]:
        first, count = rows[0], f" x{len(rows)}" if len(rows) > 1 else ""
        cells = [first.name + count, first.executor_label]
        cells += [str(len(first.ops)), show_bytes(sum(r.nbytes for r in rows))]
        totals = (sum(map(us, rows)) for us in times.values())
        cells += [show_us(us) if us > 0 else "" for us in totals]
        table.add_row(*map(Text, cells), Text(_show_locs(first)))
    if len(rows_by_content) > MAX_LAUNCH_ROWS:
        table.add_row(Text(f"and {len(rows_by_content) - MAX_LAUNCH_ROWS} more", "dim"))
    return table


def _collectives(g: GraphReport) -> Iterator[RenderableType]:
    """List what each collective sends, and what runs at the same time."""
    collectives = g.collectives
    if not collectives:
        return
    table = _table("collective", "group", "operand", "result", "overlapped", "time", "line")
    for c in collectives[:MAX_LAUNCH_ROWS]:
        overlapped = plural(len(c.overlapped), "launch") if c.overlapped else "nothing"
        cells = [c.name, c.group, show_bytes(c.operand_bytes), show_bytes(c.result_bytes)]
        cells += [overlapped, show_us(c.overlapped_us) if c.overlapped else ""]
        cells += ["" if c.loc is None else c.loc.place]
        table.add_row(*map(Text, cells))
    total = show_bytes(sum(c.operand_bytes for c in collectives))
    yield Padding(Text(f"{plural(len(collectives), 'collective')} of {total}"), INDENT[2])
    yield Padding(table, INDENT[4])
    if len(collectives) > MAX_LAUNCH_ROWS:
        yield Padding(Text(f"and {len(collectives) - MAX_LAUNCH_ROWS} more", "dim"), INDENT[4])


def _show_locs(r: RegionReport) -> str:
    """Return the lines of each file, such as `model.py:4,5,9`."""
    files: dict[str, list[int]] = {}
    for loc in r.locs:
        files.setdefault(PurePath(loc.file).name, []).append(loc.line)
    return " ".join(
        f"{name}:{','.join(map(str, sorted(set(lines))))}" for name, lines in files.items()
    )


def _not_fused(program: ProgramView) -> Iterator[RenderableType]:
    """List the pairs that were not fused by rule, with its meaning and advice."""
    groups = group_by_advice(program.report.verdicts)
    sizes = {e.verdict: e.nbytes for e in program.edges}
    total = sum(len(verdicts) for _, verdicts in groups)
    if total:
        yield Padding(Text(f"not fused: {plural(total, 'pair')}", "yellow"), INDENT[2])
    for advice, verdicts in groups:
        rules = {v.rule for v in verdicts}
        title = Text.assemble((f"{advice.title} ({len(verdicts)})", "bold"))
        same_rule = len(rules) == 1 and rules != {advice.title}
        if same_rule:
            title.append(f": {verdicts[0].rule}", "dim")
        yield Padding(title, INDENT[4])
        yield Padding(Text(advice.meaning), INDENT[6])
        shown = sorted(verdicts, key=lambda v: -sizes.get(v, 0))[:MAX_PAIRS_PER_RULE]
        pairs = [f"{v.producer} -> {v.consumer}" for v in shown]
        table = Table.grid(padding=(0, 3, 0, 0), expand=True)
        table.add_column(no_wrap=True, min_width=max(map(len, pairs)))
        table.add_column(no_wrap=True, min_width=7, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # truncated if too long
        for v, pair in zip(shown, pairs, strict=True):
            size = show_bytes(sizes[v]) if v in sizes else ""
            table.add_row(
                Text(pair), size, Text(f"{'' if same_rule else f'{v.rule}  '}{_place(v.loc)}")
            )
        yield Padding(table, INDENT[6])
        if len(verdicts) > len(shown):
            yield Padding(Text(f"and {len(verdicts) - len(shown)} more", "dim"), INDENT[8])
        if advice.todo:
            yield Padding(Text.assemble(("to do: ", "bold"), advice.todo), INDENT[6])


def _place(loc: Loc | None) -> str:
    return "" if loc is None else f"{loc.place}  {source_line(loc)}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for name in columns:
        right = name in (*SIZES, "predicted", "measured", "time", "before", "after")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=False)
    return table


_TIMES: dict[str, Callable[[RegionReport], float]] = {
    "predicted": lambda r: r.predicted_us,
    "measured": lambda r: r.measured_us or 0.0,
}
