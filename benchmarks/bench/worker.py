"""A process that runs one workload for one peer, in turns as the bench asks for them."""

import importlib
import os
import statistics
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch

from benchmarks.bench import memory
from benchmarks.bench.messages import (
    Compiled,
    Failed,
    First,
    Ready,
    Reply,
    Request,
    Settle,
    Settled,
    Took,
    Turn,
)
from benchmarks.bench.peers import PEERS, Peer, Reporting
from benchmarks.seeds import RNG_SEED, Size
from benchmarks.workloads.base import Case, Step
from benchmarks.workloads.catalogue import pick

SETTLE_STEPS = 3  # at most
SETTLE_S = 1.0  # and no new one after this
REASON_CHARACTERS = 500


def main(argv: Sequence[str]) -> None:
    """Arguments: the connection's file descriptor, peer, workload, size."""
    descriptor, peer, workload, size = argv
    os.dup2(2, 1)  # compilers print
    with Connection(int(descriptor)) as bench:
        try:
            serve(bench, PEERS[peer], workload, "full" if size == "full" else "small")
        except (EOFError, BrokenPipeError):
            return  # the bench has what it wants
        except Exception as error:
            bench.send(Failed(reason(error)))


def serve(bench: Connection, peer: Peer, workload: str, size: Size) -> None:
    """Answer requests until the bench hangs up."""
    for module in peer.modules:
        importlib.import_module(module)
    case = pick(workload).build(size)
    bench.send(Ready())
    step: Step | None = None
    while True:
        request: Request = bench.recv()
        if step is None:
            assert isinstance(request, First)
            step, reply = first(peer, case)
        else:
            reply = answer(request, step)
        bench.send(reply)


def first(peer: Peer, case: Case) -> tuple[Step, Reply]:
    """Compile, and take the first step."""
    torch.manual_seed(RNG_SEED)
    start = time.perf_counter()
    step = case.drive(peer.compile(case.target))
    results = step.run()
    seconds = time.perf_counter() - start
    magnitudes = tuple(x.detach().double().abs().mean().item() for x in results)
    predicted = None if peer.reporting is None else predict(peer.reporting, case)
    return step, Compiled(seconds, step.least_bytes(), magnitudes, predicted)


def predict(reporting: Reporting, case: Case) -> float:
    """Seconds that the cost model says of a step's regions; compiles once more, for the report."""
    compiled, report = reporting(case.target)
    case.drive(compiled).run()
    return sum(r.predicted_us for r in report.regions) / 1e6


def answer(request: Request, step: Step) -> Reply:
    match request:
        case Settle():
            before = memory.start_peak()
            seconds = [timed(step)]
            while len(seconds) < SETTLE_STEPS and sum(seconds) < SETTLE_S:
                seconds.append(timed(step))
            return Settled(min(seconds), max(0, memory.peak() - before))
        case Turn(steps, warm):
            if warm:
                step.run()  # wakes the threads, and fills the cache that another peer has used
            return Took(statistics.median(timed(step) for _ in range(steps)))
        case First():
            raise AssertionError("there is one first step")


def timed(step: Step) -> float:
    """Seconds of a step, of giving its results back too: unmapping memory is part of the price."""
    start = time.perf_counter()
    step.run()
    return time.perf_counter() - start


def reason(error: Exception) -> str:
    """The error in one line, cut; of an error that a compiler wrapped, the inner one."""
    inner = getattr(error, "inner_exception", None)  # what Dynamo and Inductor call it
    if isinstance(inner, Exception):
        return reason(inner)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)}"[:REASON_CHARACTERS]


if __name__ == "__main__":
    main(sys.argv[1:])
