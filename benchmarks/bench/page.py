"""Results of workloads as one self-contained HTML page."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.bench.peers import PEERS
from benchmarks.bench.result import WorkloadResult
from benchmarks.bench.table import cells, failure_messages, headings, legend, summary
from benchmarks.page import machine

ROW_INCHES = 0.3


def write_page(
    results: Sequence[WorkloadResult], peers: Sequence[str], title: str, path: Path
) -> None:
    """Write the page to `path` and create its folders."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    groups = dict.fromkeys(result.group for result in results)
    page = environment.get_template("page.html.j2").render(
        title=title,
        machine=machine(),
        headings=headings(peers),
        legend=legend(peers),
        rows=[(result, [cell.plain for cell in cells(result, peers)]) for result in results],
        plots=[(group, plot([o for o in results if o.group == group], peers)) for group in groups],
        failure_messages=failure_messages(results),
        summary=summary(results),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def plot(results: Sequence[WorkloadResult], peers: Sequence[str]) -> str:
    """Plot each peer's time over ours, with a tick for its target; return a PNG in base64."""
    figure = Figure(figsize=(10, 1.4 + ROW_INCHES * len(results)), layout="constrained")
    axes = figure.subplots()
    for peer in peers:
        plot_peer(axes, results, peer)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(results)), [result.workload for result in results])
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.grid(axis="both", which="major", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.set_xlabel("peer's time / our time; ticks are targets")
    axes.spines[["top", "right"]].set_visible(False)
    if any(result.ratio(peer) for result in results for peer in peers):
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def plot_peer(axes: Axes, results: Sequence[WorkloadResult], peer: str) -> None:
    """Plot the ratios and the targets of one peer."""
    ratios = [(result.ratio(peer), row) for row, result in enumerate(results)]
    measured = [(ratio, row) for ratio, row in ratios if ratio is not None]
    if not measured:
        return
    colour = COLOURS[peer]
    axes.scatter(
        [ratio for ratio, _ in measured],
        [row for _, row in measured],
        color=colour,
        label=PEERS[peer].title,
        zorder=3,
    )
    for row, result in enumerate(results):
        target = result.target
        ratios_needed = {
            "eager": target.eager,
            "inductor": target.inductor,
            "inductor-warm": target.inductor_warm,
        }
        minimum = ratios_needed.get(peer)
        if result.has_targets and minimum is not None:
            axes.plot([minimum, minimum], [row - 0.35, row + 0.35], color=colour, linewidth=2)


COLOURS = {
    "eager": "#777777",
    "inductor": "#c9822b",
    "inductor-warm": "#2a6f9e",
    "inductor-max": "#8f5a2b",
    "operator": "#7b61c9",
}
