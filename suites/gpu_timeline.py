"""`python -m suites.gpu_timeline`: predicted times of GPU kernels, beside those measured."""

import argparse
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch.overrides import TorchFunctionMode

from benchmarks.gpu_workloads import SEEDS, GpuWorkload, by_columns
from suites.gpu.capture import Example
from suites.gpu.lower import CapturedKernel, captured_kernels
from suites.gpu.programs import DTYPES
from tofuse.backends.cuda.cost.gpu_machine import GPUS, GpuMachine
from tofuse.backends.cuda.cost.tile_cost import tile_costs
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.ir.kernel import Uniform
from tofuse.ir.tile import GpuTarget

PATH = Path(__file__).parent / "gpu" / "measured.txt"
REPLAY_US = 4.0  # of a graph, beside its kernels: a copy takes 6 us and its bytes
SEED_US = 6.0  # of a seed that is drawn while a graph is captured: docs/measurements.md
TOLERANCE = 0.25
H200 = next(gpu for gpu in GPUS if gpu.name == "H200")


@dataclass(frozen=True)
class Measured:
    """Microseconds of the kernels of a program's part, on a card."""

    program: str
    dtype: str
    part: str
    us: float


class _OnCpu(TorchFunctionMode):
    """Creates tensors on the CPU: they are fake, and moved when they are traced."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return func(*args, **{k: v for k, v in (kwargs or {}).items() if k != "device"})


def read_measured() -> list[Measured]:
    lines = [line.split() for line in PATH.read_text("utf-8").splitlines() if line[:1] != "#"]
    return [Measured(name, dtype, part, float(us)) for name, dtype, part, us in lines]


@functools.cache
def workloads() -> dict[str, GpuWorkload]:
    return {w.name: w for w in (*SEEDS, *by_columns())}


@functools.cache
def kernels_of(program: str, dtype: str) -> tuple[CapturedKernel, ...]:
    workload = workloads()[program]

    def make() -> Example:
        with _OnCpu():
            return workload.program, workload.make(DTYPES[dtype]), {}

    return tuple(captured_kernels(make))


def predicted_us(program: str, dtype: str, part: str, gpu: GpuMachine) -> float:
    """Return the predicted time of the kernels of a part, with the draw of a seed."""
    target = GpuTarget(gpu.multiprocessors, gpu.capability)
    phases = {"forward": ("forward", "inference"), "backward": ("backward",)}[part]
    total, random = 0.0, False
    for captured in kernels_of(program, dtype):
        if captured.phase in phases:
            tiles = build_tiles(captured.kernel, target, bounds=captured.bounds)
            total += sum(cost.us for cost in tile_costs(tiles, gpu))
            random |= any(isinstance(s, Uniform) for s in captured.kernel.body)
    return REPLAY_US + total + SEED_US * (random and part == "forward")


def ratios(only: str = "") -> Iterator[tuple[Measured, float]]:
    """Yield each measured time, and the predicted time over it."""
    for m in read_measured():
        if only in m.program:
            yield m, predicted_us(m.program, m.dtype, m.part, H200) / m.us


def main() -> int:
    """Print the predicted times of every card, and those measured on an H200."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the programs whose name contains this text")
    parser.add_argument("--launches", action="store_true", help="what binds each launch")
    arguments = parser.parse_args()
    table = Table("program", "dtype", "part", "measured", "ratio", *(gpu.name for gpu in GPUS))
    within = 0
    for m, ratio in ratios(arguments.only):
        within += abs(ratio - 1) <= TOLERANCE
        times = [f"{predicted_us(m.program, m.dtype, m.part, gpu):.1f}" for gpu in GPUS]
        table.add_row(m.program, m.dtype, m.part, f"{m.us:.1f}", f"{ratio:.2f}", *times)
        if arguments.launches:
            show_launches(m)
    console = Console()
    console.print(table)
    console.print(f"{within} of {table.row_count} within {TOLERANCE:.0%} of the measured time")
    return 0


def show_launches(m: Measured) -> None:
    target = GpuTarget(H200.multiprocessors, H200.capability)
    for captured in kernels_of(m.program, m.dtype):
        tiles = build_tiles(captured.kernel, target, bounds=captured.bounds)
        for nest, cost in zip(tiles.nests, tile_costs(tiles, H200), strict=True):
            print(
                f"{m.program} {captured.phase} {nest.tiling}: {cost.us:.1f} us, {cost.bound} binds"
            )


if __name__ == "__main__":
    raise SystemExit(main())
