"""Time candidates for a region or program, and keep the fastest on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tofuse.backends.launcher import TimedCall
from tofuse.backends.target import ChosenSchedule
from tofuse.cost.thresholds import MIN_TUNED_GAIN_SHARE
from tofuse.disk_store import Store
from tofuse.report.number_format import show_us

KIND = "choice"
CANDIDATES_VERSION = "3"  # stored choices of other versions are ignored
FUSED, SPLIT, ATEN = "fused", "split", "aten"


@dataclass(frozen=True)
class Choice:
    """How to run a region, and the measured microseconds of each candidate.

    A schedule of None stands for the one that the heuristics choose. `cut` is the position at
    which a split region is cut. `notes` name candidates whose results are wrong.
    """

    kind: str = FUSED
    schedule: ChosenSchedule = None
    cut: int = 0
    times: tuple[tuple[str, float], ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        at = f" at {self.cut}" if self.kind == SPLIT else ""
        return f"{self.kind}{at}" + (f" ({self.schedule!r})" if self.schedule else "")

    @property
    def why(self) -> str:
        """The measured times as text, the fastest first."""
        if not self.times:
            return "not measured"
        (fastest, us), *slower = sorted(self.times, key=lambda t: t[1])
        named = "".join(f", {name} {show_us(us)}" for name, us in slower if name in (FUSED, ATEN))
        unnamed = sum(name not in (FUSED, ATEN) for name, _ in slower)
        rest = f", {unnamed} slower candidates" if unnamed else ""
        return f"measured: {fastest} {show_us(us)}{named}{rest}"


# a choice, and a function that builds it; it returns None if the candidate cannot be built
Candidate = tuple[Choice, Callable[[], "TimedCall | None"]]
# the microseconds of each call
TimeCalls = Callable[[Sequence[TimedCall]], list[float]]


def choose(
    candidates: Sequence[Candidate],
    key: Sequence[str],
    store: Store,
    time_calls: TimeCalls,
) -> Choice:
    """Return the fastest candidate; the stored one if these candidates were timed before."""
    stored = stored_choice([choice for choice, _ in candidates], key, store)
    return stored or measure_choice(candidates, key, store, time_calls)


def stored_choice(choices: Sequence[Choice], key: Sequence[str], store: Store) -> Choice | None:
    """Return the one of the choices that is stored under a key; None if none is."""
    return _parse(store.get(KIND, (CANDIDATES_VERSION, *key)), choices)


def measure_choice(
    candidates: Sequence[Candidate], key: Sequence[str], store: Store, time_calls: TimeCalls
) -> Choice:
    """Time the candidates, and store and return the fastest.

    The first candidate wins unless another is faster by `MIN_TUNED_GAIN_SHARE`, so that noise does
    not decide. Candidates that cannot be built or fail when run are skipped. If the first one
    fails, nothing is timed.
    """
    runnable: list[tuple[Choice, TimedCall]] = []
    for choice, build in candidates:
        step = build()
        if step is None:
            continue
        with suppress(Exception):  # a candidate that fails when run
            step()
            runnable.append((choice, step))
    if not runnable or runnable[0][0] is not candidates[0][0]:
        return candidates[0][0]
    times = time_calls([step for _, step in runnable])
    named_times = tuple((c.name, us) for (c, _), us in zip(runnable, times, strict=True))
    best = min(range(len(times)), key=times.__getitem__)
    if times[best] > (1 - MIN_TUNED_GAIN_SHARE) * times[0]:
        best = 0
    winner = replace(runnable[best][0], times=named_times)
    store.put(
        KIND, (CANDIDATES_VERSION, *key), json.dumps({"name": winner.name, "times": named_times})
    )
    return winner


def _parse(text: str | None, candidates: Sequence[Choice]) -> Choice | None:
    """Return the candidate with the stored name; None if there is none or the text is damaged."""
    try:
        content = json.loads(text or "")
        times = tuple((str(name), float(us)) for name, us in content["times"])
        chosen = {choice.name: choice for choice in candidates}[content["name"]]
    except (ValueError, KeyError, TypeError):
        return None
    return replace(chosen, times=times)
