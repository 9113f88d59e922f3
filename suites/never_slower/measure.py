"""Time a program and its compiled form in turn, and measure what each holds at its peak."""

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import tofuse
from benchmarks.allocations import allocations
from suites.never_slower.program import Callee, Program
from tofuse.backends.cpu.runtime.pool import POOL

ROUNDS, SECONDS = 21, 0.6  # of eager and compiled in turn: at least so many, and for so long
REPEATED_S = 300e-6  # shorter steps are repeated in a round until they take so long
WARM_UP = 60  # calls before: a program that loses is handed back within its first calls
TRIES = 3  # of a ratio below `ENOUGH`, which may be noise: the median counts
ENOUGH = 1.0
PEAKS = 3  # steps whose peak is measured

Step = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """Milliseconds of eager and compiled, the median of their ratios, and bytes at the peak."""

    eager_ms: float
    tofuse_ms: float
    ratio: float
    eager_peak: int
    tofuse_peak: int

    @property
    def peak_ratio(self) -> float:
        """Eager's peak over ours; 1 if neither holds anything."""
        return (self.eager_peak or 1) / (self.tofuse_peak or 1)


def measure_program(program: Program, training: bool, threads: int) -> Measured:
    """Measure the forward without gradients, or forward and backward."""
    torch.compiler.reset()
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    called = program.make()
    compiled: Callee = tofuse.compile(called, hand_back=True)
    inputs = make_inputs(program, called, training)
    steps = [make_step(c, inputs, training) for c in (called, compiled)]
    with torch.set_grad_enabled(training), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in steps:
            for _ in range(WARM_UP):
                step()
        with without_pool():
            peaks = [
                int(statistics.median(allocations(step).peak for _ in range(PEAKS)))
                for step in steps
            ]
        found = [time_in_turn(steps)]
        while found[0][2] < ENOUGH and len(found) < TRIES:
            found.append(time_in_turn(steps))
    eager_ms, tofuse_ms, ratio = sorted(found, key=lambda times: times[2])[len(found) // 2]
    return Measured(eager_ms, tofuse_ms, ratio, *peaks)


@contextmanager
def without_pool() -> Iterator[None]:
    """Let PyTorch allocate what the memory pool would: a block of the pool is in no profile."""
    limit, POOL.limit = POOL.limit, 0
    try:
        yield
    finally:
        POOL.limit = limit


def make_inputs(program: Program, called: Callee, training: bool) -> list[Tensor]:
    """Return random arguments."""
    parameters = list(called.parameters()) if isinstance(called, nn.Module) else []
    dtype = parameters[0].dtype if parameters else torch.float32
    return [torch.randn(shape).to(dtype).requires_grad_(training) for shape in program.shapes]


def make_step(called: Callee, inputs: list[Tensor], training: bool) -> Step:
    """Return a call; in training, with the gradients of arguments and parameters."""
    if not training:
        return lambda: called(*inputs)
    parameters = list(called.parameters()) if isinstance(called, nn.Module) else []
    leaves = [*inputs, *parameters]

    def step() -> tuple[Tensor, ...]:
        result = called(*inputs)
        gradient = torch.ones_like(result)
        return torch.autograd.grad(result, leaves, gradient, allow_unused=True)

    return step


def time_in_turn(steps: list[Step]) -> tuple[float, float, float]:
    """Return the median ms of both steps, and the median of the ratios of neighbouring rounds."""
    seconds = min(time_step(step, 3) for step in steps)
    repeats = max(1, int(REPEATED_S / max(seconds, 1e-7)))
    times: list[list[float]] = [[], []]
    end = time.perf_counter() + SECONDS
    while len(times[1]) < ROUNDS or time.perf_counter() < end:
        order = (0, 1) if len(times[1]) % 2 else (1, 0)
        for k in order:
            times[k].append(time_step(steps[k], repeats))
    ratios = [eager / ours for eager, ours in zip(*times, strict=True)]
    eager_ms, tofuse_ms = (1e3 * statistics.median(t) for t in times)
    return eager_ms, tofuse_ms, statistics.median(ratios)


def time_step(step: Step, repeats: int) -> float:
    """Return the seconds of a step."""
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - begin) / repeats
