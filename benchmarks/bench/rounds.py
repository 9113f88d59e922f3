"""Measure a workload: all peers compile one after the other, then take turns in rounds."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.bench.messages import Compiled, First, Ready, Settle, Settled, Took, Turn
from benchmarks.bench.outcome import Figures, Outcome
from benchmarks.bench.peers import PEERS, Peer
from benchmarks.bench.process import Worker, WorkerFailed, scratch, started
from benchmarks.seeds import Size
from benchmarks.workloads.base import Workload
from benchmarks.workloads.catalogue import COPY

START_LIMIT_S = 120.0
COMPILE_LIMIT_S = 900.0
STEP_LIMIT_S = 300.0

TURN_S = 0.15  # timed steps of a turn take about so long together
TURN_STEPS = 300  # and are at most so many
LONG_S = 0.3  # a step this long needs no untimed one before it
BUDGET_S = 30.0  # no new round after this, once there have been the fewest
FEWEST_ROUNDS = 5
COPY_STEPS = 5

Say = Callable[[str], None]


@dataclass
class Entrant:
    """A peer in the race, and what it has shown so far."""

    peer: Peer
    worker: Worker
    compiled: Compiled | None = None
    settled: Settled | None = None
    rounds_s: list[float] = field(default_factory=list)

    def compile(self) -> None:
        self.compiled = self.worker.ask(First(), Compiled, COMPILE_LIMIT_S)

    def settle(self) -> None:
        self.settled = self.worker.ask(Settle(), Settled, STEP_LIMIT_S)

    def take_turn(self) -> None:
        assert self.settled is not None
        seconds = max(self.settled.seconds, 1e-7)
        steps = min(math.ceil(TURN_S / seconds), TURN_STEPS)
        request = Turn(steps, warm=seconds < LONG_S)
        self.rounds_s.append(self.worker.ask(request, Took, STEP_LIMIT_S).seconds)

    def figures(self) -> Figures:
        assert self.compiled is not None
        assert self.settled is not None
        return Figures(
            tuple(self.rounds_s),
            self.compiled.seconds,
            self.settled.memory_bytes,
            self.compiled.magnitudes,
            self.compiled.predicted_s,
        )


class Race:
    """Entrants, less those that failed."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.entrants: list[Entrant] = []
        self.failures: dict[str, str] = {}

    def each(self, what: str, act: Callable[[Entrant], None], first: int = 0) -> None:
        """Let every entrant act in turn, from the `first` on; one that fails is out."""
        order = self.entrants[first:] + self.entrants[:first]
        for entrant in order:
            self.say(f"{entrant.peer.name}: {what}")
            try:
                act(entrant)
            except WorkerFailed as failure:
                self.failures[entrant.peer.name] = str(failure)
                self.entrants.remove(entrant)


def measure(
    workload: Workload,
    size: Size,
    peers: Sequence[str],
    repeat: int,
    copier: "Copier",
    say: Say,
) -> Outcome:
    """At most `repeat` rounds; the copy is timed in each. Who fails is out, the others go on."""
    race = Race(say)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        for name in peers:
            caches = folder / (PEERS[name].caches_of or name)
            worker = stack.enter_context(started(PEERS[name], workload.name, size, caches))
            race.entrants.append(Entrant(PEERS[name], worker))
        race.each("starting", lambda e: void(e.worker.hear(Ready, START_LIMIT_S)))
        race.each("compiling", Entrant.compile)
        race.each("settling", Entrant.settle)
        copies = run_rounds(race, repeat, copier)
        figures = {entrant.peer.name: entrant.figures() for entrant in race.entrants}
    known = [e.compiled.least_bytes for e in race.entrants if e.compiled is not None]
    least = next((b for b in known if b is not None), None)
    return Outcome(
        workload=workload.name,
        group=workload.group,
        judged=size == "full",
        figures={name: figures[name] for name in peers if name in figures},
        failures=race.failures,
        least_bytes=least,
        copy_rate=statistics.median(copies) if copies else None,
    )


def run_rounds(race: Race, repeat: int, copier: "Copier") -> list[float]:
    """Rounds, each begun by another entrant; returns the copy's bytes a second in each."""
    copies: list[float] = []
    end = time.perf_counter() + BUDGET_S
    for turn in range(repeat):
        if not race.entrants or (turn >= FEWEST_ROUNDS and time.perf_counter() > end):
            break
        race.each(f"round {turn + 1} of {repeat}", Entrant.take_turn, turn % len(race.entrants))
        race.say(f"copy: round {turn + 1} of {repeat}")
        copies += copier.rate()
    return copies


class Copier:
    """A worker that copies memory; one that failed says nothing more."""

    def __init__(self, worker: Worker | None) -> None:
        self.worker = worker
        self.least_bytes = 0

    def rate(self) -> list[float]:
        """Bytes a second that a copy reads and writes now, or nothing."""
        if self.worker is None:
            return []
        try:
            if not self.least_bytes:
                self.worker.hear(Ready, START_LIMIT_S)
                reply = self.worker.ask(First(), Compiled, COMPILE_LIMIT_S)
                self.least_bytes = reply.least_bytes or 0
            took = self.worker.ask(Turn(COPY_STEPS), Took, STEP_LIMIT_S)
        except WorkerFailed:
            self.worker = None
            return []
        return [self.least_bytes / took.seconds]


def start_copier(stack: ExitStack, size: Size) -> Copier:
    """A copier that lasts as long as the stack."""
    caches = stack.enter_context(scratch())
    return Copier(stack.enter_context(started(PEERS["eager"], COPY.name, size, caches)))


def void(_: object) -> None:
    """Drop a result."""
