"""The memory of the corpus: the peak of each program and what it saves, against the peers."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from benchmarks.allocations import allocations
from benchmarks.bench.peers import PEERS, US
from benchmarks.check import as_tuple
from benchmarks.measure import stepper
from benchmarks.seeds import SEEDS, Program, Size
from benchmarks.workloads.catalogue import choose

GROUPS = ("table", "extra", "bf16", "models")
SLACK = 64 * 1024  # bytes of seeds and row statistics, and of what Python's own calls allocate
WARM = 2  # runs before the one that is measured
Compile = Callable[[Program], Program]


@dataclass(frozen=True)
class Memory:
    """Bytes of one program; `saved` is None where it has no backward of its own."""

    name: str
    peak: int
    saved: int | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 if nothing of ours is above a peer's, else 1."""
    options = parse(argv)
    if options.worker:
        peer = PEERS[options.worker]
        for memory in measure_all(peer.compile, options.size, options.only, options.groups):
            print(json.dumps(asdict(memory)), flush=True)
        return 0
    names = ["eager", "inductor", US]
    found = {name: work(name, options) for name in track(names, "peers", transient=True)}
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(table(found))
    over = above(found)
    for line in over:
        console.print(line, style="red", markup=False)
    return 1 if over else 0


class Options(argparse.Namespace):
    """The command line, typed."""

    size: Size
    only: str
    groups: tuple[str, ...]
    worker: str


def parse(argv: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--only", metavar="NAME", default="", help="programs with NAME in the name")
    listed = f"workloads beside the seeds (default: {' '.join(GROUPS)})"
    parser.add_argument("--groups", nargs="*", choices=GROUPS, default=GROUPS, help=listed)
    parser.add_argument("--worker", metavar="PEER", choices=list(PEERS), help=argparse.SUPPRESS)
    return parser.parse_args(argv, namespace=Options())


def work(peer: str, options: Options) -> dict[str, Memory]:
    """What a process of its own measures for one peer; ours keeps no memory warm there."""
    command = [sys.executable, "-m", "benchmarks.memory", "--worker", peer]
    command += ["--size", options.size, "--only", options.only]
    command += ["--groups", *options.groups]
    with tempfile.TemporaryDirectory() as caches:
        environment = {**PEERS[peer].environment(Path(caches)), "TOFUSE_POOL_BYTES": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{peer} failed:\n{done.stderr[-2000:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["name"]: Memory(**row) for row in rows}


def measure_all(
    compile_program: Compile, size: Size, only: str = "", groups: Sequence[str] = ("extra",)
) -> Iterator[Memory]:
    """Every program of the corpus: the seeds, then the workloads that no seed is."""
    for seed in SEEDS:
        if only in seed.name:
            torch.compiler.reset()
            inputs = seed.make_inputs(size)
            compiled = compile_program(seed.program)
            step = stepper(compiled, inputs)
            saved = kept(lambda: compiled(*inputs)) if seed.backward else None  # noqa: B023
            yield Memory(seed.name, peak(step), saved)
    seen = {seed.name for seed in SEEDS}
    for workload in choose((), groups) if groups else ():
        if only in workload.name and workload.name not in seen:
            torch.compiler.reset()
            case = workload.build(size)
            yield Memory(workload.name, peak(case.drive(compile_program(case.target)).run))


def peak(step: Callable[[], object]) -> int:
    """The most bytes that a step holds beyond its inputs."""
    for _ in range(WARM):
        step()
    return allocations(step).peak


def kept(forward: Callable[[], Tensor | tuple[Tensor, ...]]) -> int:
    """Bytes that live after a forward beside its results: what it saved for the backward."""
    for _ in range(WARM):
        forward()
    sizes: list[int] = []

    def run() -> object:
        results = as_tuple(forward())
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in results}
        sizes.append(sum(s.nbytes() for s in storages.values()))
        return results

    return allocations(run).left - sizes[0]


def above(found: dict[str, dict[str, Memory]]) -> list[str]:
    """What we hold or save more of than a peer."""
    lines = []
    for name, ours in found[US].items():
        for peer, theirs in found.items():
            other = theirs.get(name, ours)
            pairs = (("at most", ours.peak, other.peak), ("saved", ours.saved or 0, other.saved))
            for what, mine, limit in pairs:
                if limit is not None and mine > limit + SLACK:
                    lines.append(f"{name}: {what} {mine:,} bytes, and {peer} {limit:,}")
    return lines


def table(found: dict[str, dict[str, Memory]]) -> Table:
    """A row a program."""
    drawn = Table("program", title="bytes beyond the inputs")
    for what in ("peak", "saved"):
        for peer in found:
            drawn.add_column(f"{what}\n{peer}", justify="right")
    for name in found[US]:
        rows = [theirs.get(name) for theirs in found.values()]
        peaks = ["-" if row is None else f"{row.peak:,}" for row in rows]
        saved = ["-" if row is None or row.saved is None else f"{row.saved:,}" for row in rows]
        drawn.add_row(name, *peaks, *saved)
    return drawn


if __name__ == "__main__":
    sys.exit(main())
