"""The bias-dropout-add-norm of a transformer block: three norms in three variants each.

A fourth measurement changes the sizes from step to step.
"""

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

TensorProgram = Callable[..., Tensor]
SHAPES = 20  # in the measurement with random sizes
MAX_SHIFT = 2  # between its first two extents and the fixed ones
ROUNDS = 4  # of the measurements of one size and of random sizes, which alternate
WARM_UP_STEPS = 3  # before the measurement
VARIANTS: dict[str, Callable[[TensorProgram], TensorProgram]] = {
    "eager": lambda program: program,
    "compiled": tofuse.compile,
    "memory-efficient": tofuse.memory_efficient_fusion,
}
NORMS: dict[str, tuple[TensorProgram, int]] = {
    "composite": (programs.composite, 3),
    "primitive": (programs.primitive, 3),
    "RMS": (programs.rms, 2),
}


@dataclass(frozen=True)
class Block:
    """Arguments of one size: two activations and the parameters, which all require grad."""

    arguments: tuple[Tensor, ...]
    gradient: Tensor

    def step(self, program: TensorProgram) -> None:
        """Run forward and backward, without accumulating gradients."""
        program(*self.arguments).backward(self.gradient)
        for t in self.arguments:
            t.grad = None


@dataclass(frozen=True)
class Measurement:
    """Iterations per second of one norm in one variant."""

    norm: str
    variant: str
    rate: float


def block(shape: Sequence[int], vectors: int, device: str) -> Block:
    """Make x, bias, residual and the norm's parameters; `vectors` counts bias and parameters."""
    x, residual, gradient = (torch.randn(tuple(shape), device=device) for _ in range(3))
    bias, *rest = (torch.randn(shape[-1], device=device) for _ in range(vectors))
    arguments = (x, bias, residual, *rest)
    return Block(tuple(t.requires_grad_() for t in arguments), gradient)


def rate(
    program: TensorProgram, blocks: Sequence[Block], warm_up_blocks: Sequence[Block], seconds: float
) -> float:
    """Return iterations per second over the blocks in turn, after warming up."""
    for k in range(WARM_UP_STEPS):
        warm_up_blocks[k % len(warm_up_blocks)].step(program)
    synchronize(blocks[0])
    steps = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for b in blocks:
            b.step(program)
        steps += len(blocks)
        synchronize(blocks[0])
    return steps / (time.perf_counter() - start)


def synchronize(b: Block) -> None:
    """Wait for the device to finish."""
    if b.gradient.is_cuda:
        torch.cuda.synchronize()


def measure_norms(shape: Sequence[int], device: str, seconds: float) -> list[Measurement]:
    """Measure every norm in every variant at one size."""
    runs = []
    for norm, (program, vectors) in NORMS.items():
        fixed = [block(shape, vectors, device)]
        for variant, compile_ in VARIANTS.items():
            torch.compiler.reset()
            runs.append(Measurement(norm, variant, rate(compile_(program), fixed, fixed, seconds)))
    return runs


def measure_random_sizes(shape: Sequence[int], device: str, seconds: float) -> tuple[float, float]:
    """Return the rates of the composite norm at one size and at twenty random sizes.

    The measurements alternate, so that both see the same machine. The second rate is scaled as if
    its mean size were the first's. It is compiled with one size, in which the extents that change
    are marked dynamic, as users of torch.compile do; with dynamic=True the row length would be
    symbolic too and cost an eighth.
    """
    program, vectors = NORMS["composite"]
    random.seed(42)
    shifts = range(-MAX_SHIFT, MAX_SHIFT + 1)
    shapes = [
        (shape[0] + random.choice(shifts), shape[1] + random.choice(shifts), shape[2])
        for _ in range(SHAPES)
    ]
    torch.compiler.reset()
    changing = [block(s, vectors, device) for s in shapes]
    fixed = [block(shape, vectors, device)] * SHAPES
    for t in changing[0].arguments[::2][:2]:  # x and residual
        torch._dynamo.maybe_mark_dynamic(t, (0, 1))
    dynamic = tofuse.compile(lambda *tensors: program(*tensors))
    static = tofuse.compile(lambda *tensors: program(*tensors), dynamic=False)
    sides = ((static, fixed), (dynamic, changing))
    rates: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for side_rates, (compiled, blocks) in zip(rates, sides, strict=True):
            side_rates.append(rate(compiled, blocks, blocks[:1], seconds / ROUNDS))
    elements = sum(b.gradient.numel() for b in changing) / SHAPES / fixed[0].gradient.numel()
    static_rate, random_rate = (ROUNDS / sum(1 / r for r in side_rates) for side_rates in rates)
    return static_rate, random_rate * elements


def table(runs: Sequence[Measurement]) -> Table:
    """Return a table with one row per norm and one column per variant."""
    rich_table = Table("norm", *VARIANTS, title="iterations per second, forward and backward")
    for norm in NORMS:
        rich_table.add_row(norm, *(f"{r.rate:.1f}" for r in runs if r.norm == norm))
    return rich_table


def plot(runs: Sequence[Measurement], path: Path) -> None:
    """Plot grouped bars, one group per norm."""
    figure = Figure(figsize=(8, 4.5), layout="tight")
    axes = figure.subplots()
    for k, variant in enumerate(VARIANTS):
        rates = [r.rate for r in runs if r.variant == variant]
        positions = [n + (k - 1) * 0.27 for n in range(len(rates))]
        axes.bar_label(axes.bar(positions, rates, 0.25, label=variant), fmt="%.0f", fontsize=8)
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
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="time to spend on each measurement"
    )
    parser.add_argument("--plot", type=Path, default=Path("build/tutorial.png"))
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    runs = measure_norms(options.shape, options.device, options.seconds)
    Console().print(table(runs))
    static_rate, random_rate = measure_random_sizes(options.shape, options.device, options.seconds)
    rates = f"one size {static_rate:.1f}, random sizes {random_rate:.1f}"
    print(f"iterations per second, scaled to the same size: {rates}")
    plot(runs, options.plot)
    print(f"plot: {options.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
