"""Measure a workload: all peers compile one after another, then alternate in rounds."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.bench.messages import (
    Compiled,
    FirstStep,
    Ready,
    StepTime,
    TimedSteps,
    WarmedUp,
    WarmUp,
)
from benchmarks.bench.peers import PEERS, Peer
from benchmarks.bench.process import Worker, WorkerFailed, start_worker, temporary_folder
from benchmarks.bench.result import PeerResult, WorkloadResult
from benchmarks.seeds import Size
from benchmarks.workloads.base import Workload
from benchmarks.workloads.catalogue import COPY

START_LIMIT_S = 120.0
COMPILE_LIMIT_S = 900.0
STEP_LIMIT_S = 300.0

ROUND_S = 0.15  # of timed steps per peer and round, approximately
MAX_ROUND_STEPS = 300  # per peer and round
LONG_STEP_S = 0.3  # a step this long needs no untimed step before it
BUDGET_S = 30.0  # no round starts after this, except the first MIN_ROUNDS
MIN_ROUNDS = 5
COPY_STEPS = 5

ShowProgress = Callable[[str], None]


@dataclass
class RunningPeer:
    """A peer with its worker process and its measurements so far."""

    peer: Peer
    worker: Worker
    compiled: Compiled | None = None
    warmed_up: WarmedUp | None = None
    rounds_s: list[float] = field(default_factory=list)

    def wait_until_ready(self) -> None:
        self.worker.receive(Ready, START_LIMIT_S)

    def compile(self) -> None:
        self.compiled = self.worker.ask(FirstStep(), Compiled, COMPILE_LIMIT_S)

    def warm_up(self) -> None:
        self.warmed_up = self.worker.ask(WarmUp(), WarmedUp, STEP_LIMIT_S)

    def run_round(self) -> None:
        assert self.warmed_up is not None
        seconds = max(self.warmed_up.seconds, 1e-7)
        steps = min(math.ceil(ROUND_S / seconds), MAX_ROUND_STEPS)
        request = TimedSteps(steps, warm_up_step=seconds < LONG_STEP_S)
        self.rounds_s.append(self.worker.ask(request, StepTime, STEP_LIMIT_S).seconds)

    def result(self) -> PeerResult:
        assert self.compiled is not None
        assert self.warmed_up is not None
        return PeerResult(
            tuple(self.rounds_s),
            self.compiled.seconds,
            self.warmed_up.memory_bytes,
            self.compiled.magnitudes,
            self.compiled.predicted_s,
        )


class RunningPeers:
    """The peers of a workload that have not failed, and the reasons of failure of the others."""

    def __init__(self, show_progress: ShowProgress) -> None:
        self.show_progress = show_progress
        self.peers: list[RunningPeer] = []
        self.failures: dict[str, str] = {}

    def for_each(
        self, activity: str, action: Callable[[RunningPeer], None], first: int = 0
    ) -> None:
        """Run an action on every peer, starting with the `first`; failed peers are removed."""
        order = self.peers[first:] + self.peers[:first]
        for running in order:
            self.show_progress(f"{running.peer.name}: {activity}")
            try:
                action(running)
            except WorkerFailed as failure:
                self.failures[running.peer.name] = str(failure)
                self.peers.remove(running)


def measure(
    workload: Workload,
    size: Size,
    peers: Sequence[str],
    repeat: int,
    copy_bandwidth: "CopyBandwidth",
    show_progress: ShowProgress,
) -> WorkloadResult:
    """Measure at most `repeat` rounds, each with a copy; peers that fail are left out."""
    running_peers = RunningPeers(show_progress)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        for name in (n for n in peers if PEERS[n].applies_to(workload)):
            caches = folder / (PEERS[name].uses_caches_of or name)
            worker = stack.enter_context(start_worker(PEERS[name], workload.name, size, caches))
            running_peers.peers.append(RunningPeer(PEERS[name], worker))
        running_peers.for_each("starting", RunningPeer.wait_until_ready)
        running_peers.for_each("compiling", RunningPeer.compile)
        running_peers.for_each("warming up", RunningPeer.warm_up)
        copies = run_rounds(running_peers, repeat, copy_bandwidth)
        peer_results = {running.peer.name: running.result() for running in running_peers.peers}
    byte_counts = [e.compiled.min_bytes for e in running_peers.peers if e.compiled is not None]
    min_bytes = next((b for b in byte_counts if b is not None), None)
    return WorkloadResult(
        workload=workload.name,
        group=workload.group,
        has_targets=size == "full",
        peers={name: peer_results[name] for name in peers if name in peer_results},
        failures=running_peers.failures,
        min_bytes=min_bytes,
        copy_rate=statistics.median(copies) if copies else None,
    )


def run_rounds(
    running_peers: RunningPeers, repeat: int, copy_bandwidth: "CopyBandwidth"
) -> list[float]:
    """Run the rounds, each starting with another peer; return the copy's bandwidth in each."""
    copies: list[float] = []
    end = time.perf_counter() + BUDGET_S
    for k in range(repeat):
        if not running_peers.peers or (k >= MIN_ROUNDS and time.perf_counter() > end):
            break
        running_peers.for_each(
            f"round {k + 1} of {repeat}", RunningPeer.run_round, k % len(running_peers.peers)
        )
        running_peers.show_progress(f"copy: round {k + 1} of {repeat}")
        copies += copy_bandwidth.rate()
    return copies


class CopyBandwidth:
    """Measures the bandwidth of a copy in a worker; returns nothing after a failure."""

    def __init__(self, worker: Worker | None) -> None:
        self.worker = worker
        self.min_bytes = 0

    def rate(self) -> list[float]:
        """Return the current bytes per second of a copy, in a list that is empty on failure."""
        if self.worker is None:
            return []
        try:
            if not self.min_bytes:
                self.worker.receive(Ready, START_LIMIT_S)
                reply = self.worker.ask(FirstStep(), Compiled, COMPILE_LIMIT_S)
                self.min_bytes = reply.min_bytes or 0
            timed = self.worker.ask(TimedSteps(COPY_STEPS), StepTime, STEP_LIMIT_S)
        except WorkerFailed:
            self.worker = None
            return []
        return [self.min_bytes / timed.seconds]


def start_copy_worker(stack: ExitStack, size: Size) -> CopyBandwidth:
    """Start a copy worker that runs as long as the stack."""
    caches = stack.enter_context(temporary_folder())
    return CopyBandwidth(stack.enter_context(start_worker(PEERS["eager"], COPY.name, size, caches)))
