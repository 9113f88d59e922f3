"""Into how many stages a long sum is cut, so that its error stays small.

The error of a sum grows with the number of additions that one accumulator takes in one after the
other. So the first stage takes a few terms, each further one `NEXT` results of the stage before,
and only the last takes what is left.
"""

from __future__ import annotations

from tofuse.ir.dims import Dim, fixed, product
from tofuse.ir.kernel import Kernel, Reduce
from tofuse.ir.schedule import Schedule

FIRST = 16  # as many as eager's; see docs/measurements.md
NEXT = 8
UNKNOWN = 1 << 20  # steps of a size that is not known


def stages(steps: Dim) -> int:
    """Accumulators before the last one."""
    count, most = 0, FIRST
    while fixed(steps, UNKNOWN) > most:
        count, most = count + 1, most * NEXT
    return count


def due(stage: int) -> int:
    """After how many steps the results of a stage go to the next."""
    return int(FIRST * NEXT**stage)


def is_cut(r: Reduce) -> bool:
    """Whether a reduction has an error that grows with its length."""
    return r.op == "sum" and r.dtype.is_float


def steps_of(kernel: Kernel, schedule: Schedule, r: Reduce) -> Dim:
    """How often a reduction goes round the loops that do not run in vectors."""
    inner = schedule.loops[-1].axis if schedule.vector > 1 else ""
    strips = {lp.axis: lp.strip for lp in schedule.loops if lp.strip}
    steps = [kernel.extent(a) for a in r.over if a != inner]
    if inner in r.over and inner in strips:
        steps.append(-(-fixed(kernel.extent(inner), UNKNOWN) // strips[inner]))
    return product(steps)
