"""Divide long sums into stages of accumulators, to bound the rounding error.

The error of a sum grows with the number of consecutive additions to one accumulator. So the first
stage sums `FIRST_STAGE_TERMS` terms, each further stage `STAGE_FACTOR` results of the stage before
it, and the last accumulator takes the rest.
"""

from __future__ import annotations

from tofuse.ir.dims import Dim, product, static_or
from tofuse.ir.kernel import Kernel, Reduce
from tofuse.ir.schedule import Schedule

FIRST_STAGE_TERMS = 16  # as in eager's sums; measured in docs/measurements.md
STAGE_FACTOR = 8
ASSUMED_STEPS = 1 << 20  # of a loop of symbolic size


def stage_count(steps: Dim) -> int:
    """Return the number of stages before the last accumulator."""
    count, capacity = 0, FIRST_STAGE_TERMS
    while static_or(steps, ASSUMED_STEPS) > capacity:
        count, capacity = count + 1, capacity * STAGE_FACTOR
    return count


def stage_period(stage: int) -> int:
    """Return the number of steps after which a stage is added to the next."""
    return int(FIRST_STAGE_TERMS * STAGE_FACTOR**stage)


def is_staged(r: Reduce) -> bool:
    """Whether the rounding error of a reduction grows with its length."""
    return r.op == "sum" and r.dtype.is_float


def sequential_steps(kernel: Kernel, schedule: Schedule, r: Reduce) -> Dim:
    """Return the number of scalar or vector additions to one accumulator of a reduction."""
    inner = schedule.loops[-1].axis if schedule.vector > 1 else ""
    strips = {lp.axis: lp.strip for lp in schedule.loops if lp.strip}
    steps = [kernel.extent(a) for a in r.over if a != inner]
    if inner in r.over and inner in strips:
        steps.append(-(-static_or(kernel.extent(inner), ASSUMED_STEPS) // strips[inner]))
    return product(steps)
