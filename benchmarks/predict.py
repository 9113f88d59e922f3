"""Predicted and measured times of every region of the workloads, each run by itself."""

import argparse
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

import tofuse
from benchmarks.seeds import Size
from benchmarks.workloads.base import Workload
from benchmarks.workloads.catalogue import choose
from tofuse.backends.cpu.runtime.cpu_timing import fastest_us
from tofuse.config import make_config
from tofuse.driver.compile_graph import compile_text
from tofuse.graph_partition.parse import parse_partition
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Graph, show_graph
from tofuse.report.repro import region_graph
from tofuse.runtime.sample_inputs import sample_tensors

WIDTH_WITHOUT_TERMINAL = 120  # columns of the table
MAX_MEDIAN_ERROR = 0.25  # relative to the measured time


@dataclass(frozen=True)
class Row:
    """The predicted and the measured microseconds of one region; measured is the fastest call."""

    workload: str
    phase: str
    region: str
    library: bool
    predicted_us: float
    measured_us: float

    @property
    def error(self) -> float:
        """The error of the prediction relative to the measured time."""
        return abs(self.predicted_us - self.measured_us) / self.measured_us


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if the median error of our kernels is above the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predict", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME,...", default="", help="workloads to measure; * and ? are wildcards"
    )
    parser.add_argument(
        "--groups", metavar="GROUP,...", default="table", help="groups of workloads"
    )
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--seconds", type=float, default=0.1, help="time to spend on each region")
    parser.add_argument(
        "--calibrate", action="store_true", help="calibrate the machine model first"
    )
    options = parser.parse_args(argv)
    if options.calibrate:
        tofuse.calibrate()
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH_WITHOUT_TERMINAL)
    rows: list[Row] = []
    chosen = choose(_names(options.only), _names(options.groups))
    for workload in track(chosen, "measuring", console=console, transient=True):
        rows += predict(workload, options.size, options.seconds)
        console.print(f"{workload.name}: {_median([r.error for r in rows])} so far")
    console.print(table(rows))
    ours = [r.error for r in rows if not r.library]
    for what, errors in (("kernels", ours), ("calls", [r.error for r in rows if r.library])):
        if errors:
            console.print(f"{what}: {_median(errors)}")
    return 1 if ours and statistics.median(ours) > MAX_MEDIAN_ERROR else 0


def _median(errors: Sequence[float]) -> str:
    if not errors:
        return "nothing measured"
    accurate = sum(e < MAX_MEDIAN_ERROR for e in errors)
    median = statistics.median(errors)
    return f"median error {median:.0%} of {len(errors)}, {accurate} within {MAX_MEDIAN_ERROR:.0%}"


def predict(workload: Workload, size: Size, seconds: float) -> list[Row]:
    """Measure every region of a workload; of regions that differ only in sizes, the largest."""
    with tempfile.TemporaryDirectory() as folder:
        case = workload.build(size)
        case.drive(tofuse.compile(case.target, dump=folder)).run()
        texts = {p: p.read_text() for p in sorted(Path(folder).glob("*_regions.txt"))}
    largest: dict[tuple[object, ...], tuple[str, Graph, bool]] = {}
    for path, text in texts.items():
        for graph, library in regions(text):
            key = tuple((op.kind, len(op.result.shape), op.result.dtype) for op in graph.ops)
            if key not in largest or _total_bytes(largest[key][1]) < _total_bytes(graph):
                largest[key] = (path.stem.split("_")[1], graph, library)
    return [_measure_region(workload.name, *region, seconds) for region in largest.values()]


def _total_bytes(graph: Graph) -> int:
    return sum(size_hint(v.type.nbytes) for v in (*graph.inputs, *(op.result for op in graph.ops)))


def regions(text: str) -> Iterator[tuple[Graph, bool]]:
    """Yield the regions of a partition's text that have results, as graphs."""
    part = parse_partition(text)
    for region in part.regions:
        if region.outputs and not any("tofuse." in str(op.attrs) for op in region.ops):
            yield region_graph(region, part.aliases.memrefs), region.library


def _measure_region(workload: str, phase: str, graph: Graph, library: bool, seconds: float) -> Row:
    compiled = compile_text(show_graph(graph), make_config({}))
    inputs = sample_tensors(graph.inputs)
    measured = fastest_us(lambda: compiled.run([*inputs]), seconds)
    predicted = sum(r.predicted_us for r in compiled.findings.reports[0].regions)
    return Row(workload, phase, graph.name, library, predicted, measured)


def table(rows: Sequence[Row]) -> Table:
    """Return a table with one row per region."""
    rich_table = Table(title="predicted and measured, microseconds")
    for heading in ("workload", "phase", "region"):
        rich_table.add_column(heading, no_wrap=True)
    for heading in ("predicted", "measured", "error"):
        rich_table.add_column(heading, justify="right")
    for row in rows:
        style = "dim" if row.library else "green" if row.error < MAX_MEDIAN_ERROR else "yellow"
        rich_table.add_row(
            row.workload,
            row.phase,
            row.region,
            f"{row.predicted_us:.1f}",
            f"{row.measured_us:.1f}",
            f"{row.error:.0%}",
            style=style,
        )
    return rich_table


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
