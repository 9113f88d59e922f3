"""The predicted cost of a kernel, on any target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tofuse.ir.rules import Reason, Rule

OVERLAP = 0.15  # fraction of the smaller of arithmetic and traffic that the larger does not hide


def overlapped(work: float, traffic: float) -> float:
    """Return the time of arithmetic and memory traffic that overlap."""
    return max(work, traffic) + OVERLAP * min(work, traffic)


@dataclass(frozen=True)
class Cost:
    """The predicted cost of one launch.

    - `work_us`, `traffic_us`: arithmetic alone and memory traffic alone, on `threads` threads.
    - `least_us`: the total if all accesses were contiguous and all vector lanes in use, or of two
      kernels that compute each value once; on a GPU, if one launch moved each byte once.
    - `recomputed_adds`: work on values that are computed more than once, in additions.
    - `separate_us`: a lower bound on two kernels that compute these values once and store them.
    """

    us: float
    work_us: float
    traffic_us: float
    nbytes: int
    threads: int
    recomputed_adds: float
    separate_us: float
    least_us: float


class Evaluation(NamedTuple):
    """Why a kernel is rejected, or else its cost, if the cost is known."""

    rejection: Reason | None
    cost: Cost | None = None


def recomputation_reason(cost: Cost, separate_us: float) -> Reason:
    """Return why a kernel that computes values more than once is two kernels instead."""
    numbers = (cost.recomputed_adds, cost.us, separate_us)
    return Rule.RECOMPUTATION(*map(_two_digits, numbers))


def _two_digits(x: float) -> str:
    """Format with two significant digits, the precision of predictions."""
    return f"{float(f'{x:.1e}'):,.0f}" if x >= 10 else f"{x:.1f}"
