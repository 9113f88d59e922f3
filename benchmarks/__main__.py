"""The benchmark: run the workloads against eager and Inductor, and compare with their targets."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.bench.page import write_page
from benchmarks.bench.peers import OURS, PEERS
from benchmarks.bench.result import WorkloadResult, as_json
from benchmarks.bench.rounds import measure, start_copy_worker
from benchmarks.bench.table import failure_messages, line, summary, tables
from benchmarks.page import machine
from benchmarks.seeds import Size
from benchmarks.workloads.base import Workload
from benchmarks.workloads.catalogue import GROUPS, WORKLOADS, choose

WIDTH_WITHOUT_TERMINAL = 180  # columns of the tables
OTHER_PEERS = tuple(name for name in PEERS if name != OURS)


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if every workload ran and is correct, 1 if not, 2 for wrong arguments.

    A missed target is printed, but does not fail the command.
    """
    options = parse(argv)
    if options.list:
        print("\n".join(f"{workload.name:<32} {workload.group}" for workload in WORKLOADS))
        return 0
    try:
        workloads = choose(options.only, options.groups)
    except ValueError as error:
        print(f"{error}; --list shows all workloads", file=sys.stderr)
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH_WITHOUT_TERMINAL)
    results = measure_workloads(workloads, options, console)
    for rich_table in tables(results, options.peers):
        console.print(rich_table)
    for message in failure_messages(results):
        console.print(message, style="red", markup=False, highlight=False)
    write_page(results, options.peers, f"tofuse bench, {options.size} size", options.html)
    console.print(summary(results), highlight=False)
    for path in (options.json, options.html):
        console.print(f"report: {path}", markup=False, highlight=False, soft_wrap=True)
    return 0 if len(results) == len(workloads) and all(o.is_correct for o in results) else 1


class Options(argparse.Namespace):
    """The typed command line."""

    only: tuple[str, ...]
    groups: tuple[str, ...]
    peers: tuple[str, ...]
    size: Size
    repeat: int
    json: Path
    html: Path
    list: bool


def parse(argv: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add(
        "--only",
        metavar="NAME,...",
        type=parse_names,
        default=(),
        help="workloads to run; * and ? are wildcards",
    )
    add(
        "--groups", metavar="GROUP,...", type=KnownNames(GROUPS), default=(), help=", ".join(GROUPS)
    )
    add(
        "--peers",
        metavar="PEER,...",
        type=KnownNames(OTHER_PEERS),
        default=OTHER_PEERS,
        help=", ".join(OTHER_PEERS),
    )
    add("--size", choices=("small", "full"), default="full", help="targets apply to full size only")
    add(
        "--repeat",
        metavar="N",
        type=positive_int,
        default=9,
        help="maximum number of rounds (default: 9)",
    )
    add("--json", metavar="PATH", type=Path, default=Path("build/bench.json"))
    add("--html", metavar="PATH", type=Path, default=Path("build/bench.html"))
    add("--list", action="store_true", help="list the workloads and exit")
    return parser.parse_args(argv, namespace=Options())


def parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


class KnownNames:
    """Parses a list of known names and returns them in the order of the known ones."""

    def __init__(self, known: Sequence[str]) -> None:
        self.known = known

    def __call__(self, text: str) -> tuple[str, ...]:
        chosen = parse_names(text)
        for name in chosen:
            if name not in self.known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(self.known)}")
        return tuple(name for name in self.known if name in chosen)


def positive_int(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def measure_workloads(
    workloads: Sequence[Workload], options: Options, console: Console
) -> list[WorkloadResult]:
    """Measure the workloads one by one; results are written to disk after each, also on Ctrl-C."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    results: list[WorkloadResult] = []
    with progress, ExitStack() as stack:
        task = progress.add_task("starting", total=len(workloads))
        copy_bandwidth = start_copy_worker(stack, options.size)
        for workload in workloads:

            def show_progress(activity: str, name: str = workload.name) -> None:
                progress.update(task, description=f"{name}: {activity}")

            try:
                all_peers = (OURS, *options.peers)
                results.append(
                    measure(
                        workload,
                        options.size,
                        all_peers,
                        options.repeat,
                        copy_bandwidth,
                        show_progress,
                    )
                )
            except KeyboardInterrupt:
                progress.console.print("stopped; the results so far are kept", style="yellow")
                break
            progress.console.print(line(results[-1], options.peers), soft_wrap=True)
            progress.advance(task)
            write_json(results, options)
    return results


def write_json(results: Sequence[WorkloadResult], options: Options) -> None:
    """Write all results so far."""
    options.json.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "size": options.size,
        "peers": (OURS, *options.peers),
        "results": [as_json(result) for result in results],
    }
    options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
