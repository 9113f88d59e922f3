"""The bench: run the workloads against eager and Inductor, and hold them against their bars."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.bench.outcome import Outcome, as_json
from benchmarks.bench.page import write_page
from benchmarks.bench.peers import PEERS, US
from benchmarks.bench.rounds import measure, start_copier
from benchmarks.bench.table import complaints, line, summary, tables
from benchmarks.page import machine
from benchmarks.seeds import Size
from benchmarks.workloads.base import Workload
from benchmarks.workloads.catalogue import GROUPS, WORKLOADS, choose

PLAIN_WIDTH = 180  # columns of the tables where there is no terminal to ask
OTHERS = tuple(name for name in PEERS if name != US)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 if we ran everything soundly, 1 if not, 2 for wrong arguments.

    A bar that is missed is printed, and does not fail the command.
    """
    options = parse(argv)
    if options.list:
        print("\n".join(f"{workload.name:<32} {workload.group}" for workload in WORKLOADS))
        return 0
    try:
        workloads = choose(options.only, options.groups)
    except ValueError as error:
        print(f"{error}; --list shows all", file=sys.stderr)
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    outcomes = work(workloads, options, console)
    for drawn in tables(outcomes, options.peers):
        console.print(drawn)
    for complaint in complaints(outcomes):
        console.print(complaint, style="red", markup=False, highlight=False)
    write_page(outcomes, options.peers, f"tofuse bench, {options.size} size", options.html)
    console.print(summary(outcomes), highlight=False)
    for path in (options.json, options.html):
        console.print(f"report: {path}", markup=False, highlight=False, soft_wrap=True)
    return 0 if len(outcomes) == len(workloads) and all(o.sound for o in outcomes) else 1


class Options(argparse.Namespace):
    """The command line, typed."""

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
    add("--only", metavar="NAME,...", type=names, default=(), help="these; * and ? match")
    add("--groups", metavar="GROUP,...", type=among(GROUPS), default=(), help=", ".join(GROUPS))
    add("--peers", metavar="PEER,...", type=among(OTHERS), default=OTHERS, help=", ".join(OTHERS))
    add("--size", choices=("small", "full"), default="full", help="bars are judged at full size")
    add("--repeat", metavar="N", type=positive, default=9, help="rounds at most (default: 9)")
    add("--json", metavar="PATH", type=Path, default=Path("build/bench.json"))
    add("--html", metavar="PATH", type=Path, default=Path("build/bench.html"))
    add("--list", action="store_true", help="show the workloads and stop")
    return parser.parse_args(argv, namespace=Options())


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


class among:
    """Parse names of which all must be known; in the order of the known ones."""

    def __init__(self, known: Sequence[str]) -> None:
        self.known = known

    def __call__(self, text: str) -> tuple[str, ...]:
        given = names(text)
        for name in given:
            if name not in self.known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(self.known)}")
        return tuple(name for name in self.known if name in given)


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return number


def work(workloads: Sequence[Workload], options: Options, console: Console) -> list[Outcome]:
    """Measure one by one; what is measured so far is on disk at any time, and kept on Ctrl-C."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    outcomes: list[Outcome] = []
    with progress, ExitStack() as stack:
        task = progress.add_task("starting", total=len(workloads))
        copier = start_copier(stack, options.size)
        for workload in workloads:

            def say(what: str, name: str = workload.name) -> None:
                progress.update(task, description=f"{name}: {what}")

            try:
                everyone = (US, *options.peers)
                outcomes.append(
                    measure(workload, options.size, everyone, options.repeat, copier, say)
                )
            except KeyboardInterrupt:
                progress.console.print("stopped; what was measured is kept", style="yellow")
                break
            progress.console.print(line(outcomes[-1], options.peers), soft_wrap=True)
            progress.advance(task)
            write_json(outcomes, options)
    return outcomes


def write_json(outcomes: Sequence[Outcome], options: Options) -> None:
    """Everything measured so far."""
    options.json.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "size": options.size,
        "peers": (US, *options.peers),
        "outcomes": [as_json(outcome) for outcome in outcomes],
    }
    options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
