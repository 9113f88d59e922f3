"""Predict the time of a program's steps from its report: kernels in turn, collectives beside."""

from collections.abc import Callable
from dataclasses import dataclass

from tofuse.report.collective_report import Collective
from tofuse.report.model import GraphReport
from tofuse.report.region_report import RegionReport

RING = {  # bytes that a rank sends in a ring, as (n - 1) / n of these
    "all_gather_into_tensor": lambda c: c.result_bytes,
    "reduce_scatter_tensor": lambda c: c.operand_bytes,
    "all_reduce": lambda c: 2 * c.operand_bytes,
    "all_to_all_single": lambda c: c.operand_bytes,
}


@dataclass(frozen=True)
class Network:
    """What a collective costs: `latency_us`, and bytes a second that a rank sends in a ring."""

    latency_us: float
    bandwidth: float

    def us(self, collective: Collective, ranks: int) -> float:
        """Return the microseconds of a collective that nothing runs beside."""
        sent = RING[collective.operator](collective) * (ranks - 1) / ranks
        return self.latency_us + 1e6 * sent / self.bandwidth


@dataclass(frozen=True)
class Prediction:
    """Microseconds of one run: all, of kernels and library calls, and of collectives."""

    total_us: float
    compute_us: float
    communication_us: float

    @property
    def exposed_us(self) -> float:
        """The time in which the program waits for collectives."""
        return self.total_us - self.compute_us


def predict(
    graph: GraphReport, network: Network, ranks: int, us: Callable[[RegionReport], float]
) -> Prediction:
    """Predict one run of a graph; `us` gives the time of a launch, or of starting a collective.

    Kernels and library calls run one after another. Collectives do so beside them: each begins
    when it is started and the one before has ended. A wait lasts until its collective has ended.
    """
    collectives = graph.collectives
    started = {c.start: c for c in collectives}
    ends: dict[int, float] = {}  # of collectives, by the step that waits
    now = compute = last_end = 0.0
    for step, region in sorted(graph.step_regions().items()):
        if step in ends:
            now = max(now, ends[step])
            continue
        compute += us(region)
        now += us(region)
        if (c := started.get(step)) is not None:
            last_end = max(now, last_end) + network.us(c, ranks)
            if c.wait is not None:
                ends[c.wait] = last_end
    return Prediction(now, compute, sum(network.us(c, ranks) for c in collectives))
