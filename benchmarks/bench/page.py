"""Outcomes as one self-contained HTML page."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.bench.outcome import Outcome
from benchmarks.bench.peers import PEERS
from benchmarks.bench.table import cells, complaints, headings, legend, summary
from benchmarks.page import machine

ROW_INCHES = 0.3


def write_page(outcomes: Sequence[Outcome], peers: Sequence[str], title: str, path: Path) -> None:
    """Write the page to `path`, folders included."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    groups = dict.fromkeys(outcome.group for outcome in outcomes)
    page = environment.get_template("page.html.j2").render(
        title=title,
        machine=machine(),
        headings=headings(peers),
        legend=legend(peers),
        rows=[(outcome, [cell.plain for cell in cells(outcome, peers)]) for outcome in outcomes],
        plots=[(group, plot([o for o in outcomes if o.group == group], peers)) for group in groups],
        complaints=complaints(outcomes),
        summary=summary(outcomes),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def plot(outcomes: Sequence[Outcome], peers: Sequence[str]) -> str:
    """A dot for each peer's time over ours, a tick for its bar, as a PNG in base64."""
    figure = Figure(figsize=(10, 1.4 + ROW_INCHES * len(outcomes)), layout="constrained")
    axes = figure.subplots()
    for peer in peers:
        draw_peer(axes, outcomes, peer)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(outcomes)), [outcome.workload for outcome in outcomes])
    axes.set_ylim(len(outcomes) - 0.5, -0.5)
    axes.grid(axis="both", which="major", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.set_xlabel("time over ours; ticks are bars")
    axes.spines[["top", "right"]].set_visible(False)
    if any(outcome.ratio(peer) for outcome in outcomes for peer in peers):
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def draw_peer(axes: Axes, outcomes: Sequence[Outcome], peer: str) -> None:
    ratios = [(outcome.ratio(peer), row) for row, outcome in enumerate(outcomes)]
    known = [(ratio, row) for ratio, row in ratios if ratio is not None]
    if not known:
        return
    colour = COLOURS[peer]
    axes.scatter(
        [ratio for ratio, _ in known],
        [row for _, row in known],
        color=colour,
        label=PEERS[peer].title,
        zorder=3,
    )
    for row, outcome in enumerate(outcomes):
        bar = outcome.bar
        bars = {"eager": bar.eager, "inductor": bar.inductor, "inductor-warm": bar.inductor_warm}
        least = bars[peer]
        if outcome.judged and least is not None:
            axes.plot([least, least], [row - 0.35, row + 0.35], color=colour, linewidth=2)


COLOURS = {"eager": "#777777", "inductor": "#c9822b", "inductor-warm": "#2a6f9e"}
