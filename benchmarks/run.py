"""Run the seed programs and show what fusion does for each."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.measure import Result, measure
from benchmarks.page import write_page
from benchmarks.seeds import SEEDS, Seed, Size
from benchmarks.table import failure_message, table

WIDTH_WITHOUT_TERMINAL = 110  # columns of the table


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if every seed is correct, 1 if one is not, 2 for wrong arguments."""
    options = parse(argv)
    seeds = [seed for seed in SEEDS if not options.only or options.only in seed.name]
    if not seeds:
        print(f"no seed has {options.only!r} in its name; the seeds are:", file=sys.stderr)
        print("  " + "\n  ".join(seed.name for seed in SEEDS), file=sys.stderr)
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH_WITHOUT_TERMINAL)
    title = f"tofuse seeds, {options.size} size, {options.device}"
    results = measure_seeds(seeds, options.size, options.device, title, console)
    if not console.is_terminal:
        console.print()  # a live display does not end with a line break
    failed = [result for result in results if not result.is_correct]
    for result in failed:
        console.print(failure_message(result), style="red", markup=False, highlight=False)
    write_page(results, title, options.html)
    console.print(f"report: {options.html}", markup=False, highlight=False, soft_wrap=True)
    return 1 if failed else 0


class Options(argparse.Namespace):
    """The typed command line."""

    size: Size
    only: str
    html: Path
    device: str


def parse(argv: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument(
        "--only", metavar="NAME", default="", help="run the seeds with NAME in their name"
    )
    parser.add_argument("--html", metavar="PATH", type=Path, default=Path("build/seeds.html"))
    parser.add_argument("--device", type=device, default="cpu", help="cpu or cuda (default: cpu)")
    return parser.parse_args(argv, namespace=Options())


def device(name: str) -> str:
    """Return `name` if such a device exists."""
    if name not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{name!r} is neither cpu nor cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("PyTorch finds no CUDA device")
    return name


def measure_seeds(
    seeds: Sequence[Seed], size: Size, device: str, title: str, console: Console
) -> list[Result]:
    """Measure the seeds one by one and show the table as it grows."""
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )
    task = progress.add_task("", total=len(seeds))
    results: list[Result] = []
    with Live(Group(table(results, title), progress), console=console) as live:
        for seed in seeds:
            progress.update(task, description=seed.name)
            results.append(measure(seed, size, device))
            progress.advance(task)
            live.update(Group(table(results, title), progress))
        live.update(table(results, title))
    return results


if __name__ == "__main__":
    sys.exit(main())
