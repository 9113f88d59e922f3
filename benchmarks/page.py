"""Results of seed programs as one self-contained HTML page."""

import base64
import io
import platform
from collections.abc import Sequence
from pathlib import Path

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from benchmarks.measure import Result
from benchmarks.table import failure_message, megabytes, milliseconds


def write_page(results: Sequence[Result], title: str, path: Path) -> None:
    """Write the page for `results` to `path` and create its folders."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    environment.filters.update(
        megabytes=megabytes, milliseconds=milliseconds, failure_message=failure_message
    )
    page = environment.get_template("page.html.j2").render(
        title=title, results=results, plot=plot(results), machine=machine()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def machine() -> str:
    """Describe the machine and the software that the measurements depend on."""
    threads = torch.get_num_threads()
    plural = "" if threads == 1 else "s"
    return (
        f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, "
        f"{threads} thread{plural}, torch {torch.__version__}, Python {platform.python_version()}"
    )


def plot(results: Sequence[Result]) -> str:
    """Return a bar chart of the speed-up of each seed that ran, as a PNG in base64."""
    ran = [(result.name, result.cost.speedup) for result in results if result.cost is not None]
    names, speedups = [name for name, _ in ran], [speedup for _, speedup in ran]
    figure = Figure(figsize=(9, 1.2 + 0.28 * len(ran)), layout="constrained")
    axes = figure.subplots()
    colours = [FASTER if speedup >= 1.0 else SLOWER for speedup in speedups]
    bars = axes.barh(names, speedups, color=colours)
    axes.bar_label(bars, labels=[f"{speedup:.2f}x" for speedup in speedups], padding=3)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("speed-up over eager")
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


FASTER = "#2a7f62"
SLOWER = "#c9822b"
