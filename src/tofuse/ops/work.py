"""How much work a kernel is, and how many threads that is worth."""

from __future__ import annotations

from tofuse.ir.kernel import Compute, Kernel, Load, Uniform
from tofuse.ops.table import OPS

WORK_PER_THREAD = 300_000.0  # units of kernel_work, about 10 us: less does not pay for a thread


def kernel_work(kernel: Kernel) -> float:
    """Rough additions per point of the iteration space."""
    total = 0.0
    for s in kernel.body:
        if isinstance(s, Compute):
            total += 0.3 * (OPS[s.op].cost if s.op in OPS else 2.0)
        else:
            total += 4.0 if isinstance(s, (Uniform, Load)) else 0.5
    return max(total, 0.5)


def threads_worth(elements: int, work: float) -> int:
    """How many threads that many points of that much work are worth."""
    return max(1, int(elements * work / WORK_PER_THREAD))
