"""The bias-dropout-add-norm of a transformer block: three norms, three ways to run each, and sizes
that change from step to step."""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor

import tofuse
from benchmarks import programs

Program = Callable[..., Tensor]
SHAPES = 20  # of the run with random sizes
SPREAD = 2  # how far its first two extents are from the fixed ones
TURNS = 4  # in which one size and many are measured
WARM_UP = 3  # steps before the clock starts
WAYS: dict[str, Callable[[Program], Program]] = {
    "eager": lambda program: program,
    "compiled": tofuse.compile,
    "memory-efficient": tofuse.memory_efficient_fusion,
}
NORMS: dict[str, tuple[Program, int]] = {
    "composite": (programs.composite, 3),
    "primitive": (programs.primitive, 3),
    "RMS": (programs.rms, 2),
}


@dataclass(frozen=True)
class Block:
    """Arguments for one size: two activations and the parameters, which all require grad."""

    arguments: tuple[Tensor, ...]
    gradient: Tensor

    def step(self, program: Program) -> None:
        """Forward and backward, without accumulating gradients."""
        program(*self.arguments).backward(self.gradient)
        for t in self.arguments:
            t.grad = None


@dataclass(frozen=True)
class Run:
    """Iterations per second of one norm run one way."""

    norm: str
    way: str
    rate: float


def block(shape: Sequence[int], vectors: int, device: str) -> Block:
    """x, bias, residual, then the norm's own parameters: `vectors` of the last extent in all."""
    x, residual, gradient = (torch.randn(tuple(shape), device=device) for _ in range(3))
    bias, *rest = (torch.randn(shape[-1], device=device) for _ in range(vectors))
    arguments = (x, bias, residual, *rest)
    return Block(tuple(t.requires_grad_() for t in arguments), gradient)


def rate(program: Program, blocks: Sequence[Block], warm: Sequence[Block], seconds: float) -> float:
    """Iterations per second over the blocks in turn, after warming up on others."""
    for k in range(WARM_UP):
        warm[k % len(warm)].step(program)
    wait(blocks[0])
    steps = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for b in blocks:
            b.step(program)
        steps += len(blocks)
        wait(blocks[0])
    return steps / (time.perf_counter() - start)


def wait(b: Block) -> None:
    """Until the device has done all it was given."""
    if b.gradient.is_cuda:
        torch.cuda.synchronize()


def nine(shape: Sequence[int], device: str, seconds: float) -> list[Run]:
    """Every norm in every way, on one size."""
    runs = []
    for norm, (program, vectors) in NORMS.items():
        fixed = [block(shape, vectors, device)]
        for way, compile_ in WAYS.items():
            torch.compiler.reset()
            runs.append(Run(norm, way, rate(compile_(program), fixed, fixed, seconds)))
    return runs


def random_sizes(shape: Sequence[int], device: str, seconds: float) -> tuple[float, float]:
    """Rates of the composite norm on one size and on twenty, of which the first alone was shown.

    Taken in turns, so that both see one machine; the second as if its mean size were the first's.
    The extents that will change are marked, as torch.compile's users do; were the last one a
    symbol too (dynamic=True), rows of unknown length would cost an eighth.
    """
    program, vectors = NORMS["composite"]
    random.seed(42)
    moves = range(-SPREAD, SPREAD + 1)
    shapes = [
        (shape[0] + random.choice(moves), shape[1] + random.choice(moves), shape[2])
        for _ in range(SHAPES)
    ]
    torch.compiler.reset()
    changing = [block(s, vectors, device) for s in shapes]
    fixed = [block(shape, vectors, device)] * SHAPES
    for t in changing[0].arguments[::2][:2]:  # x and residual
        torch._dynamo.maybe_mark_dynamic(t, (0, 1))
    of_any_size = tofuse.compile(lambda *tensors: program(*tensors))
    of_one_size = tofuse.compile(lambda *tensors: program(*tensors), dynamic=False)
    sides = ((of_one_size, fixed), (of_any_size, changing))
    rates: list[list[float]] = [[], []]
    for _ in range(TURNS):
        for found, (compiled, blocks) in zip(rates, sides, strict=True):
            found.append(rate(compiled, blocks, blocks[:1], seconds / TURNS))
    elements = sum(b.gradient.numel() for b in changing) / SHAPES / fixed[0].gradient.numel()
    static, varied = (TURNS / sum(1 / r for r in found) for found in rates)
    return static, varied * elements


def table(runs: Sequence[Run]) -> Table:
    """A row a norm, a column a way."""
    made = Table("norm", *WAYS, title="iterations per second, forward and backward")
    for norm in NORMS:
        made.add_row(norm, *(f"{r.rate:.1f}" for r in runs if r.norm == norm))
    return made


def plot(runs: Sequence[Run], path: Path) -> None:
    """Bars in groups of one norm."""
    figure = Figure(figsize=(8, 4.5), layout="tight")
    axes = figure.subplots()
    for k, way in enumerate(WAYS):
        rates = [r.rate for r in runs if r.way == way]
        places = [n + (k - 1) * 0.27 for n in range(len(rates))]
        axes.bar_label(axes.bar(places, rates, 0.25, label=way), fmt="%.0f", fontsize=8)
    axes.set_xticks(range(len(NORMS)), list(NORMS))
    axes.set_ylabel("iterations per second")
    axes.set_title("Bias, dropout, add, norm: forward and backward")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tutorial", description=__doc__)
    parser.add_argument("--shape", type=int, nargs=3, default=(64, 128, 1024))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement")
    parser.add_argument("--plot", type=Path, default=Path("build/tutorial.png"))
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    runs = nine(options.shape, options.device, options.seconds)
    Console().print(table(runs))
    static, varied = random_sizes(options.shape, options.device, options.seconds)
    print(f"one size {static:.1f}, random sizes {varied:.1f} iterations per second of that size")
    plot(runs, options.plot)
    print(f"plot: {options.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
