"""Run one seed: is it right, and what does it cost before and after fusion."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

import tofuse
from benchmarks.check import Finding, as_tuple, check, output_gradients
from benchmarks.launches import count_launches
from benchmarks.seeds import Inputs, Program, Seed, Size

BUDGET_S = 2.0  # time to spend on the timing of one seed
REPETITIONS = range(5, 101)  # at least and at most so many samples of each side
SAMPLE_S = 1e-3  # a shorter run is repeated until a sample takes this long

Step = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """Counts for one call, forward and backward together; times are medians in milliseconds."""

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
    """What came of a seed: a cost, unless it failed with an error."""

    name: str
    findings: tuple[Finding, ...]
    cost: Cost | None
    failure: str | None = None

    @property
    def right(self) -> bool:
        return self.failure is None and all(finding.right for finding in self.findings)

    @property
    def worst(self) -> Finding | None:
        """The finding nearest to its limit or furthest beyond."""
        return max(self.findings, key=lambda finding: finding.error / finding.limit, default=None)


def measure(seed: Seed, size: Size, device: str) -> Result:
    """Everything there is to say of `seed`; an error in it becomes a result that is not right."""
    torch.compiler.reset()  # one function may serve several seeds, and recompilations are limited
    try:
        return examine(seed, size, device)
    except Exception as error:
        return Result(seed.name, (), None, f"{type(error).__name__}: {error}")


def examine(seed: Seed, size: Size, device: str) -> Result:
    """`measure` without the safety net."""
    inputs = seed.make_inputs(size, device)
    report = tofuse.explain(seed.program)(*inputs)  # first: a process compiles a kernel only once
    compiled: Program = tofuse.compile(seed.program)
    findings = check(seed, inputs, compiled, tofuse.compile)
    eager_ms, tofuse_ms = alternate(
        [stepper(seed.program, inputs), stepper(compiled, inputs)], inputs_device(inputs)
    )
    cost = Cost(
        kernels_before=count_launches(stepper(seed.program, inputs)),
        kernels_after=len(report.kernels) + len(report.library_calls),
        bytes_before=report.bytes_before,
        bytes_after=report.bytes_after,
        compile_ms=report.compile_ms,
        eager_ms=eager_ms,
        tofuse_ms=tofuse_ms,
    )
    return Result(seed.name, findings, cost)


def stepper(program: Program, inputs: Inputs) -> Step:
    """One call of `program`, with its gradients if the inputs require any."""
    if not any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        return lambda: program(*inputs)
    wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    given = output_gradients(as_tuple(program(*inputs)))
    return lambda: torch.autograd.grad(as_tuple(program(*inputs)), wanted, given)


def alternate(steps: Sequence[Step], device: torch.device) -> list[float]:
    """The median time of each step in milliseconds, taken in turns so that all see one machine."""
    repeats = [calibrate(step, device) for step in steps]
    samples: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + BUDGET_S
    for turn in cycle(range(len(steps))):
        taken = len(samples[-1])
        if turn == 0 and taken >= REPETITIONS.start and time.perf_counter() > end:
            break
        if turn == 0 and taken >= REPETITIONS.stop - 1:
            break
        seconds = sample(steps[turn], repeats[turn], device)
        samples[turn].append(seconds / repeats[turn] * 1e3)
    return [statistics.median(times) for times in samples]


def calibrate(step: Step, device: torch.device) -> int:
    """Warm up, then say how many runs of `step` make a sample long enough to time."""
    sample(step, 2, device)
    return max(1, int(SAMPLE_S / max(sample(step, 1, device), 1e-7)))


def sample(step: Step, repeats: int, device: torch.device) -> float:
    """Seconds for `repeats` runs of `step`."""
    wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    wait(device)
    return time.perf_counter() - start


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def inputs_device(inputs: Inputs) -> torch.device:
    return next(x.device for x in inputs if isinstance(x, Tensor))
