"""Measure one seed program: its correctness, and its cost before and after fusion."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

import tofuse
from benchmarks.check import Comparison, as_tuple, check, output_gradients
from benchmarks.launches import count_launches
from benchmarks.seeds import Inputs, Program, Seed, Size

TIMING_BUDGET_S = 2.0  # for the timing of one seed
REPETITIONS = range(5, 101)  # minimum and maximum number of samples of each step
SAMPLE_S = 1e-3  # a shorter step is repeated until a sample takes this long

StepFunction = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """The cost of one call, forward and backward together; times are medians in milliseconds."""

    kernels_before: int
    kernels_after: int
    bytes_before: int
    bytes_after: int
    compile_ms: float
    eager_ms: float
    tofuse_ms: float

    @property
    def speedup(self) -> float:
        return self.eager_ms / self.tofuse_ms


@dataclass(frozen=True)
class Result:
    """The result of a seed: its comparisons and cost, or the error that it raised."""

    name: str
    comparisons: tuple[Comparison, ...]
    cost: Cost | None
    failure: str | None = None

    @property
    def is_correct(self) -> bool:
        return self.failure is None and all(c.is_within_limit for c in self.comparisons)

    @property
    def worst(self) -> Comparison | None:
        """Return the comparison nearest to its limit or furthest above it."""
        return max(self.comparisons, key=lambda c: c.error / c.limit, default=None)


def measure(seed: Seed, size: Size, device: str) -> Result:
    """Measure a seed; an exception becomes a result that is not correct."""
    torch.compiler.reset()  # seeds share functions, and Dynamo limits recompilations
    try:
        return measure_or_raise(seed, size, device)
    except Exception as error:
        return Result(seed.name, (), None, f"{type(error).__name__}: {error}")


def measure_or_raise(seed: Seed, size: Size, device: str) -> Result:
    """Measure a seed; exceptions propagate."""
    inputs = seed.make_inputs(size, device)
    # explain first, because a process compiles a kernel only once
    report = tofuse.explain(seed.program)(*inputs)
    compiled: Program = tofuse.compile(seed.program)
    comparisons = check(seed, inputs, compiled, tofuse.compile)
    eager_ms, tofuse_ms = time_alternately(
        [make_step(seed.program, inputs), make_step(compiled, inputs)], inputs_device(inputs)
    )
    cost = Cost(
        kernels_before=count_launches(make_step(seed.program, inputs)),
        kernels_after=len(report.kernels) + len(report.library_calls),
        bytes_before=report.bytes_before,
        bytes_after=report.bytes_after,
        compile_ms=report.compile_ms,
        eager_ms=eager_ms,
        tofuse_ms=tofuse_ms,
    )
    return Result(seed.name, comparisons, cost)


def make_step(program: Program, inputs: Inputs) -> StepFunction:
    """Return a call of `program`, with its gradients if the inputs require any."""
    if not any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        return lambda: program(*inputs)
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    gradients = output_gradients(as_tuple(program(*inputs)))
    return lambda: torch.autograd.grad(as_tuple(program(*inputs)), leaves, gradients)


def time_alternately(steps: Sequence[StepFunction], device: torch.device) -> list[float]:
    """Return the median time of each step in milliseconds; the steps alternate."""
    repeats = [choose_repeats(step, device) for step in steps]
    samples: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + TIMING_BUDGET_S
    for k in cycle(range(len(steps))):
        sample_count = len(samples[-1])
        if k == 0 and sample_count >= REPETITIONS.start and time.perf_counter() > end:
            break
        if k == 0 and sample_count >= REPETITIONS.stop - 1:
            break
        seconds = time_runs(steps[k], repeats[k], device)
        samples[k].append(seconds / repeats[k] * 1e3)
    return [statistics.median(times) for times in samples]


def choose_repeats(step: StepFunction, device: torch.device) -> int:
    """Warm up, then return how many runs of `step` make a sample long enough to time."""
    time_runs(step, 2, device)
    return max(1, int(SAMPLE_S / max(time_runs(step, 1, device), 1e-7)))


def time_runs(step: StepFunction, repeats: int, device: torch.device) -> float:
    """Return the seconds that `repeats` runs of `step` take."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait for the device to finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def inputs_device(inputs: Inputs) -> torch.device:
    return next(x.device for x in inputs if isinstance(x, Tensor))
