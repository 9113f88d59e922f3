"""Memory of the corpus: the peak of each program and what it saves for backward, for each peer."""

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
from benchmarks.bench.peers import OURS, PEERS
from benchmarks.check import as_tuple
from benchmarks.measure import make_step
from benchmarks.seeds import SEEDS, Program, Size
from benchmarks.workloads.catalogue import choose

GROUPS = ("table", "extra", "bf16", "models")
TOLERANCE = 64 * 1024  # bytes, for seeds, row statistics, and allocations of Python
WARM_UP_RUNS = 2  # before the measured run
Compile = Callable[[Program], Program]


@dataclass(frozen=True)
class Memory:
    """Bytes of one program; `saved` is None if it has no separate backward."""

    name: str
    peak: int
    saved: int | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if we need no more memory than each peer, else 1."""
    options = parse(argv)
    if options.worker:
        peer = PEERS[options.worker]
        for memory in measure_all(peer.compile, options.size, options.only, options.groups):
            print(json.dumps(asdict(memory)), flush=True)
        return 0
    names = ["eager", "inductor", OURS]
    by_peer = {name: measure_peer(name, options) for name in track(names, "peers", transient=True)}
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(table(by_peer))
    excesses = exceeding(by_peer)
    for line in excesses:
        console.print(line, style="red", markup=False)
    return 1 if excesses else 0


class Options(argparse.Namespace):
    """The typed command line."""

    size: Size
    only: str
    groups: tuple[str, ...]
    worker: str


def parse(argv: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument(
        "--only", metavar="NAME", default="", help="programs with NAME in their name"
    )
    groups_help = f"groups of workloads to measure besides the seeds (default: {' '.join(GROUPS)})"
    parser.add_argument("--groups", nargs="*", choices=GROUPS, default=GROUPS, help=groups_help)
    parser.add_argument("--worker", metavar="PEER", choices=list(PEERS), help=argparse.SUPPRESS)
    return parser.parse_args(argv, namespace=Options())


def measure_peer(peer: str, options: Options) -> dict[str, Memory]:
    """Measure one peer in a separate process, without our memory pool."""
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
    """Measure every program of the corpus: the seeds, then the workloads that are not seeds."""
    for seed in SEEDS:
        if only in seed.name:
            torch.compiler.reset()
            inputs = seed.make_inputs(size)
            compiled = compile_program(seed.program)
            step = make_step(compiled, inputs)
            saved = saved_bytes(lambda: compiled(*inputs)) if seed.backward else None  # noqa: B023
            yield Memory(seed.name, peak_bytes(step), saved)
    seed_names = {seed.name for seed in SEEDS}
    for workload in choose((), groups) if groups else ():
        if only in workload.name and workload.name not in seed_names:
            torch.compiler.reset()
            case = workload.build(size)
            yield Memory(workload.name, peak_bytes(case.drive(compile_program(case.target)).run))


def peak_bytes(step: Callable[[], object]) -> int:
    """Return the peak bytes of a step beyond its inputs."""
    for _ in range(WARM_UP_RUNS):
        step()
    return allocations(step).peak


def saved_bytes(forward: Callable[[], Tensor | tuple[Tensor, ...]]) -> int:
    """Return the bytes alive after a forward besides its results: the saved tensors."""
    for _ in range(WARM_UP_RUNS):
        forward()
    sizes: list[int] = []

    def run() -> object:
        results = as_tuple(forward())
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in results}
        sizes.append(sum(s.nbytes() for s in storages.values()))
        return results

    return allocations(run).remaining - sizes[0]


def exceeding(by_peer: dict[str, dict[str, Memory]]) -> list[str]:
    """Return a line for each program of which we hold or save more than a peer."""
    lines = []
    for name, ours in by_peer[OURS].items():
        for peer, peer_memory in by_peer.items():
            other = peer_memory.get(name, ours)
            pairs = (("peak", ours.peak, other.peak), ("saved", ours.saved or 0, other.saved))
            for what, our_bytes, limit in pairs:
                if limit is not None and our_bytes > limit + TOLERANCE:
                    lines.append(f"{name}: {what} {our_bytes:,} bytes, {peer} {limit:,}")
    return lines


def table(by_peer: dict[str, dict[str, Memory]]) -> Table:
    """Return a table with one row per program."""
    rich_table = Table("program", title="bytes beyond the inputs")
    for what in ("peak", "saved"):
        for peer in by_peer:
            rich_table.add_column(f"{what}\n{peer}", justify="right")
    for name in by_peer[OURS]:
        rows = [peer_memory.get(name) for peer_memory in by_peer.values()]
        peaks = ["-" if row is None else f"{row.peak:,}" for row in rows]
        saved = ["-" if row is None or row.saved is None else f"{row.saved:,}" for row in rows]
        rich_table.add_row(name, *peaks, *saved)
    return rich_table


if __name__ == "__main__":
    sys.exit(main())
