"""What came of a workload: each peer's numbers, what follows from them, and the bar."""

import math
import statistics
from dataclasses import dataclass

from benchmarks.bench.peers import PEERS, US
from benchmarks.workloads.bars import Bar, bar_of
from benchmarks.workloads.base import Group
from benchmarks.workloads.catalogue import pick

HELD = "held"
FAR = 0.05  # a mean magnitude this far from eager's, in proportion, is wrong in any precision


@dataclass(frozen=True)
class Figures:
    """One peer's: seconds of each round and of the first call, and memory that steps needed.

    `predicted_s` is what its cost model says of all regions of a step; None where it has none.
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
class Outcome:
    """One workload's: figures or the reason of failure by peer, and bytes a second of the copy."""

    workload: str
    group: Group
    judged: bool
    figures: dict[str, Figures]
    failures: dict[str, str]
    least_bytes: int | None
    copy_rate: float | None

    def ratio(self, peer: str) -> float | None:
        """The peer's time over ours: above one, we are faster."""
        if peer not in self.figures or US not in self.figures:
            return None
        return self.figures[peer].median_s / self.figures[US].median_s

    @property
    def share(self) -> float | None:
        """Least bytes a second of our time, over bytes a second of a copy."""
        if US not in self.figures or not self.least_bytes or not self.copy_rate:
            return None
        return self.least_bytes / self.figures[US].median_s / self.copy_rate

    @property
    def bar(self) -> Bar:
        return bar_of(pick(self.workload))

    @property
    def wrong(self) -> str | None:
        """How our results are far from eager's, if they are.

        Eager adds up halves in halves: where another peer gives what we do, its sum has stuck.
        """
        if US not in self.figures or "eager" not in self.figures or pick(self.workload).drawn:
            return None
        got, expected = self.figures[US].magnitudes, self.figures["eager"].magnitudes
        if len(got) != len(expected):
            return f"{len(got)} results, eager has {len(expected)}"
        half = pick(self.workload).dtype.itemsize < 4
        judges = [f.magnitudes for peer, f in self.figures.items() if peer != US and half]
        for i, (g, e) in enumerate(zip(got, expected, strict=True)):
            if not any(_near(g, m[i]) for m in (expected, *judges)):
                return f"result {i} has mean magnitude {g:.4g}, eager's {e:.4g}"
        return None

    @property
    def sound(self) -> bool:
        """Whether we ran, and computed what eager does as far as one can tell."""
        return US in self.figures and self.wrong is None

    def standings(self) -> tuple[tuple[str, float | None, float], ...]:
        """Each bar there is: its name, what was reached (None if unknown), and what is wanted."""
        bar = self.bar
        wanted = (
            ("inductor", self.ratio("inductor"), bar.inductor),
            ("inductor-warm", self.ratio("inductor-warm"), bar.inductor_warm),
            ("eager", self.ratio("eager"), bar.eager),
            ("bandwidth", self.share, bar.share),
        )
        return tuple((what, reached, least) for what, reached, least in wanted if least is not None)

    def misses(self) -> tuple[str, ...]:
        """Each bar that is not held, with what was reached, as rounded as it is printed."""
        return tuple(
            f"{what} {reached:.2f} < {least:g}"
            for what, reached, least in self.standings()
            if self.judged and reached is not None and round(reached, 2) < least
        )

    def verdict(self) -> str:
        """`held`, or what is missed or unknown; empty where there is nothing to judge."""
        if US in self.failures:
            return "failed"
        if self.wrong is not None:
            return "wrong: " + self.wrong
        unknown = [what for what, reached, _ in self.standings() if reached is None]
        if not self.judged or len(unknown) == len(self.standings()):
            return ""
        held = f"{HELD}, {' and '.join(unknown)} not measured" if unknown else HELD
        return "; ".join(self.misses()) or held


def as_json(outcome: Outcome) -> dict[str, object]:
    """The outcome with everything that follows from it, times in seconds, memory in bytes."""
    return {
        "workload": outcome.workload,
        "group": outcome.group,
        "least_bytes": outcome.least_bytes,
        "copy_bytes_per_s": outcome.copy_rate,
        "share_of_copy": outcome.share,
        "ratios": {peer: outcome.ratio(peer) for peer in PEERS if peer != US},
        "bar": outcome.bar.__dict__ if outcome.judged else None,
        "misses": outcome.misses(),
        "wrong": outcome.wrong,
        "failures": outcome.failures,
        "peers": {
            name: {
                "median_s": figures.median_s,
                "rounds_s": figures.rounds_s,
                "predicted_s": figures.predicted_s,
                "compile_s": figures.compile_s,
                "memory_bytes": figures.memory_bytes,
            }
            for name, figures in outcome.figures.items()
        },
    }


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=FAR, abs_tol=1e-6) or (a != a and b != b)
