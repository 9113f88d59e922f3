"""The cases: a function at a size, forward and backward, compiled and not handed back to eager.

Times are the CPU's on one thread, because a wall clock counts what other processes take.
"""

import statistics
import time
import warnings

import torch

import tofuse
from suites.gradients.layouts import GATHERS, NORMS, VIEWS, WINDOWS
from suites.gradients.shapes import Functions
from suites.gradients.values import (
    ACTIVATIONS,
    ELEMENTWISE,
    LOSSES,
    MATRICES,
    REDUCTIONS,
    SPECTRA,
)
from suites.harness import Result
from suites.never_slower.measure import Step, make_step

SUITE = "gradients"
SIZES = (200, 1500, 1_000_000)
CALL_US = 60.0  # of guards and autograd's function, that every compiled step takes
LIMIT = 1.5  # times eager's time, beyond `CALL_US`
ROUND_US = 1000.0  # of eager in a round, at least
ROUNDS, SECONDS = 9, 0.4  # of eager and compiled in turn: at least so many, and for so long
WORST = 40  # cases that are printed

FUNCTIONS: Functions = {
    **REDUCTIONS, **ACTIVATIONS, **LOSSES, **ELEMENTWISE, **MATRICES, **SPECTRA,
    **WINDOWS, **NORMS, **VIEWS, **GATHERS,
}  # fmt: skip


def list_cases() -> list[str]:
    return [f"{name} | {n}" for name in FUNCTIONS for n in SIZES]


def run_case(case: str) -> Result:
    """Time a case in turn with eager; "slower" if it takes more than the limit."""
    name, size = case.split(" | ")
    function, shapes = FUNCTIONS[name]
    torch.compiler.reset()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = [torch.randn(shape).requires_grad_() for shape in shapes(int(size))]
    compiled = tofuse.compile(function, hand_back=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager_us, tofuse_us = time_steps([make_step(f, inputs, True) for f in (function, compiled)])
    data: dict[str, str | int | float | list[str]] = {"eager": eager_us, "tofuse": tofuse_us}
    slower = tofuse_us - CALL_US > LIMIT * eager_us
    return Result(case, "slower" if slower else "ok", f"{tofuse_us / eager_us:.2f}", data)


def time_steps(steps: list[Step]) -> tuple[float, ...]:
    """Return the microseconds of each step: the mean of the fastest quarter of its rounds."""
    for step in steps * 4:
        step()
    repeats = max(1, int(ROUND_US / min(time_step(steps[0], 1) for _ in range(3))))
    times: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + SECONDS
    while len(times[0]) < ROUNDS or time.perf_counter() < end:
        for k, step in enumerate(steps):
            times[k].append(time_step(step, repeats))
    return tuple(statistics.mean(sorted(t)[: max(1, len(t) // 4)]) for t in times)


def time_step(step: Step, repeats: int) -> float:
    """Return the CPU's microseconds of a step."""
    begin = time.thread_time()
    for _ in range(repeats):
        step()
    return max(1e-3, 1e6 * (time.thread_time() - begin) / repeats)


def worst_cases(results: dict[str, Result]) -> str:
    """Return the largest ratios of our time beyond a call's overhead to eager's, as text."""
    rows = []
    for case, result in results.items():
        if not result.failed:
            eager_us, tofuse_us = (float(str(result.data[k])) for k in ("eager", "tofuse"))
            rows.append(((tofuse_us - CALL_US) / eager_us, eager_us, tofuse_us, case))
    lines = [f"ratio without {CALL_US:.0f} us, eager and tofuse in us"]
    lines += [f"{r:6.2f} {e:10.1f} {t:10.1f}  {case}" for r, e, t, case in sorted(rows)[::-1]]
    return "\n".join(lines[: WORST + 1])
