"""Check that compile time is linear in the size of a program: `python -m benchmarks.scaling`.

The whole compiler, the graph passes and the partitioner are timed on programs of two sizes.
"""

import argparse
import random
import statistics
import sys
import tempfile
import timeit
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

import tofuse
from benchmarks import long_programs
from benchmarks.partition_graphs import PARTITION_GRAPHS, partition_on_cpu
from benchmarks.pass_graphs import PASS_GRAPHS
from tofuse.driver.pipeline import run_graph_passes
from tofuse.ir.graph import Graph

MAX_FACTOR = 1.5  # growth of the time relative to the growth of the size
TOLERANCE_MS = 20.0

Timer = Callable[[], float]  # runs once and returns milliseconds
Prepare = Callable[[int], Timer]  # makes a program of a size


@dataclass(frozen=True)
class Row:
    """The median milliseconds of one program at two sizes."""

    name: str
    sizes: tuple[int, int]
    ms: tuple[float, float]

    @property
    def is_linear(self) -> bool:
        factor = MAX_FACTOR * self.sizes[1] / self.sizes[0]
        return self.ms[1] <= factor * self.ms[0] + TOLERANCE_MS


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if the time of a program grows too fast."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--samples", type=int, default=5, help="number of samples of each size")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all sizes")
    options = parser.parse_args(argv)
    sizes = {name: max(2, round(size * options.scale)) for name, (size, _) in CASES.items()}
    rows = [measure(name, sizes[name], CASES[name][1], options.samples) for name in CASES]
    Console(width=120).print(table(rows))
    return 0 if all(row.is_linear for row in rows) else 1


def measure(name: str, size: int, prepare: Prepare, samples: int) -> Row:
    """Time a program of `size` and of twice the size, alternately."""
    timers = prepare(size), prepare(2 * size)
    times = [(timers[0](), timers[1]()) for _ in range(samples)]
    small, large = (statistics.median(column) for column in zip(*times, strict=True))
    return Row(name, (size, 2 * size), (small, large))


def compile_timer(make: Callable[[int], long_programs.Program], size: int) -> Timer:
    """Return a timer of the whole compiler, without Dynamo and without cached machine code."""
    program, (first, *rest) = make(size)

    def run() -> float:
        factor = 1 + random.random()  # changes the text of the first kernel
        scaled = lambda x, *others: program(x * factor, *others)  # noqa: E731
        torch.compiler.reset()
        with tempfile.TemporaryDirectory() as folder:
            return tofuse.explain(scaled, cache_dir=folder)(first, *rest).compile_ms

    return run


def graph_timer(run: Callable[[Graph], object], make: Callable[[int], Graph], size: int) -> Timer:
    """Return a timer of a function of a graph."""
    graph = make(size)
    return lambda: 1e3 * timeit.timeit(lambda: run(graph), number=1)


def table(rows: Sequence[Row]) -> Table:
    """Return a table with one row per program."""
    result = Table("program", title="compile time by size")
    for heading in ("size", "ms", "ratio of times", "ratio of sizes"):
        result.add_column(heading, justify="right")
    for row in rows:
        (size, large), (ms, large_ms) = row.sizes, row.ms
        cells = (f"{size}, {large}", f"{ms:.1f}, {large_ms:.1f}", f"{large_ms / ms:.2f}")
        style = "" if row.is_linear else "red"
        result.add_row(row.name, *cells, f"{large / size:.2f}", style=style)
    return result


CASES: dict[str, tuple[int, Prepare]] = {  # the smaller size of each program
    **{f"compile {f.__name__}": (n, partial(compile_timer, f)) for f, n in long_programs.PROGRAMS},
    **{
        f"{stage} {make.__name__}": (1000, partial(graph_timer, run, make))
        for stage, run, graphs in (
            ("passes", run_graph_passes, PASS_GRAPHS),
            ("partition", partition_on_cpu, PARTITION_GRAPHS),
        )
        for make in graphs
    },
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
