"""The result of a workload: each peer's times, the ratios, and the targets."""

import math
import statistics
from dataclasses import dataclass

from benchmarks.bench.peers import OURS, PEERS
from benchmarks.workloads.base import WorkloadGroup
from benchmarks.workloads.catalogue import pick
from benchmarks.workloads.targets import SpeedTarget, target_of

MET = "met"
MAX_MAGNITUDE_DIFFERENCE = 0.05  # relative to eager; more is a mismatch in any precision


@dataclass(frozen=True)
class PeerResult:
    """Seconds of each round and of the first call of one peer, and the memory that steps needed.

    `predicted_s` is the cost model's prediction for all regions of a step, if the peer has one.
    """

    rounds_s: tuple[float, ...]
    compile_s: float
    memory_bytes: int
    magnitudes: tuple[float, ...]
    predicted_s: float | None = None

    @property
    def median_s(self) -> float:
        return statistics.median(self.rounds_s)


@dataclass(frozen=True)
class WorkloadResult:
    """The results of one workload by peer, or the reasons of failure.

    `copy_rate` is the bandwidth of a copy in bytes per second. `has_targets` is false at small
    size.
    """

    workload: str
    group: WorkloadGroup
    has_targets: bool
    peers: dict[str, PeerResult]
    failures: dict[str, str]
    min_bytes: int | None
    copy_rate: float | None

    def ratio(self, peer: str) -> float | None:
        """Return the peer's time over ours: above 1, we are faster."""
        if peer not in self.peers or OURS not in self.peers:
            return None
        return self.peers[peer].median_s / self.peers[OURS].median_s

    @property
    def bandwidth_share(self) -> float | None:
        """The minimum bytes over our time, relative to the bandwidth of a copy."""
        if OURS not in self.peers or not self.min_bytes or not self.copy_rate:
            return None
        return self.min_bytes / self.peers[OURS].median_s / self.copy_rate

    @property
    def target(self) -> SpeedTarget:
        return target_of(pick(self.workload))

    @property
    def mismatch(self) -> str | None:
        """How our results differ from eager's, or None.

        Eager accumulates half precision in half precision, so its sums may stagnate. In half
        precision, a result that agrees with another peer is therefore accepted.
        """
        if OURS not in self.peers or "eager" not in self.peers or pick(self.workload).is_random:
            return None
        got, expected = self.peers[OURS].magnitudes, self.peers["eager"].magnitudes
        if len(got) != len(expected):
            return f"{len(got)} results, eager has {len(expected)}"
        is_half = pick(self.workload).dtype.itemsize < 4
        other_peers = [p.magnitudes for peer, p in self.peers.items() if peer != OURS and is_half]
        for i, (g, e) in enumerate(zip(got, expected, strict=True)):
            if not any(_is_close(g, m[i]) for m in (expected, *other_peers)):
                return f"result {i} has mean magnitude {g:.4g}, eager's {e:.4g}"
        return None

    @property
    def is_correct(self) -> bool:
        """Whether we ran, and our results agree with eager's in magnitude."""
        return OURS in self.peers and self.mismatch is None

    def target_results(self) -> tuple[tuple[str, float | None, float], ...]:
        """Return the name, the measured value (None if unknown) and the minimum of each target."""
        target = self.target
        targets = (
            ("inductor", self.ratio("inductor"), target.inductor),
            ("inductor-warm", self.ratio("inductor-warm"), target.inductor_warm),
            ("eager", self.ratio("eager"), target.eager),
            ("bandwidth", self.bandwidth_share, target.bandwidth_share),
        )
        return tuple(
            (name, value, minimum) for name, value, minimum in targets if minimum is not None
        )

    def missed_targets(self) -> tuple[str, ...]:
        """Return each missed target with the measured value, rounded as it is printed."""
        return tuple(
            f"{name} {value:.2f} < {minimum:g}"
            for name, value, minimum in self.target_results()
            if self.has_targets and value is not None and round(value, 2) < minimum
        )

    def status(self) -> str:
        """Return `met`, or the missed or unmeasured targets; empty if there are no targets."""
        if OURS in self.failures:
            return "failed"
        if self.mismatch is not None:
            return "wrong: " + self.mismatch
        unknown = [name for name, value, _ in self.target_results() if value is None]
        if not self.has_targets or len(unknown) == len(self.target_results()):
            return ""
        text = f"{MET}, {' and '.join(unknown)} not measured" if unknown else MET
        return "; ".join(self.missed_targets()) or text


def as_json(result: WorkloadResult) -> dict[str, object]:
    """Return the result with all derived values, times in seconds, memory in bytes."""
    return {
        "workload": result.workload,
        "group": result.group,
        "min_bytes": result.min_bytes,
        "copy_bytes_per_s": result.copy_rate,
        "bandwidth_share": result.bandwidth_share,
        "ratios": {peer: result.ratio(peer) for peer in PEERS if peer != OURS},
        "target": result.target.__dict__ if result.has_targets else None,
        "missed_targets": result.missed_targets(),
        "mismatch": result.mismatch,
        "failures": result.failures,
        "peers": {
            name: {
                "median_s": peer.median_s,
                "rounds_s": peer.rounds_s,
                "predicted_s": peer.predicted_s,
                "compile_s": peer.compile_s,
                "memory_bytes": peer.memory_bytes,
            }
            for name, peer in result.peers.items()
        },
    }


def _is_close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=MAX_MAGNITUDE_DIFFERENCE, abs_tol=1e-6) or (a != a and b != b)
