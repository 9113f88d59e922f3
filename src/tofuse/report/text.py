"""The report as text, for terminals."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.report.model import GraphReport, Report


@dataclass
class ReportText(Report):
    """A report that prints itself: regions with their ops and lines, verdicts, bytes, sources."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.graphs)

    def __str__(self) -> str:
        return show_report(self)

    __repr__ = __str__


def show_report(report: Report) -> str:
    """All graphs, one after the other."""
    return "\n\n".join(_show_graph(g) for g in report.graphs) or "nothing was compiled"


def _show_graph(g: GraphReport) -> str:
    lines = [
        f"== {g.phase}: {len(g.kernels)} kernels, {len(g.library_calls)} library calls, "
        f"{_bytes(g.bytes_before)} -> {_bytes(g.bytes_after)}, {g.compile_ms:.1f} ms to compile"
    ]
    lines.append(f"memory: at most {_bytes(g.peak_bytes)} (eager {_bytes(g.eager_peak_bytes)})")
    if g.phase == "forward":
        kept = (
            f"saved for the backward: {_bytes(g.saved_bytes)} (eager {_bytes(g.eager_saved_bytes)})"
        )
        lines.append(f"{kept}; {g.repeated} calls are repeated there to save no more")
    lines += [f"note: {n}" for n in g.notes]
    for r in g.regions:
        lines.append(f"region {r.name} ({_bytes(r.nbytes)}): {' '.join(r.ops)}")
        lines += [f"    {loc}  {loc.code}" for loc in r.locs]
    lines += ["verdicts:"] + [f"    {v!r}" for v in g.verdicts] if g.verdicts else []
    for k in g.kernels:
        lines += [f"kernel {k.name}:", _indent(k.loops), _indent(k.source)]
    return "\n".join(lines)


def _bytes(n: int) -> str:
    size = float(n)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())
