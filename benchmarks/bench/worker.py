"""A worker process: runs one workload for one peer and answers the benchmark's requests."""

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
    FirstStep,
    Ready,
    Reply,
    Request,
    StepTime,
    TimedSteps,
    WarmedUp,
    WarmUp,
)
from benchmarks.bench.peers import PEERS, CompileWithReport, Peer
from benchmarks.seeds import RNG_SEED, Size
from benchmarks.workloads.base import Case, Step
from benchmarks.workloads.catalogue import pick

MAX_WARM_UP_STEPS = 3
WARM_UP_S = 1.0  # no warm-up step starts after this
MAX_REASON_CHARACTERS = 500


def main(argv: Sequence[str]) -> None:
    """Arguments: the connection's file descriptor, peer, workload, size."""
    descriptor, peer, workload, size = argv
    os.dup2(2, 1)  # compilers print to stdout
    with Connection(int(descriptor)) as connection:
        try:
            serve(connection, PEERS[peer], workload, "full" if size == "full" else "small")
        except (EOFError, BrokenPipeError):
            return  # the benchmark has finished
        except Exception as error:
            connection.send(Failed(describe_error(error)))


def serve(connection: Connection, peer: Peer, workload: str, size: Size) -> None:
    """Answer requests until the connection is closed."""
    for module in peer.modules:
        importlib.import_module(module)
    case = pick(workload).build(size, packed=peer.runs_packed)
    connection.send(Ready())
    step: Step | None = None
    while True:
        request: Request = connection.recv()
        if step is None:
            assert isinstance(request, FirstStep)
            step, reply = first_step(peer, case)
        else:
            reply = handle(request, step)
        connection.send(reply)


def first_step(peer: Peer, case: Case) -> tuple[Step, Reply]:
    """Compile, and run the first step."""
    torch.manual_seed(RNG_SEED)
    start = time.perf_counter()
    step = case.drive(peer.compile(case.target))
    results = step.run()
    seconds = time.perf_counter() - start
    magnitudes = tuple(x.detach().double().abs().mean().item() for x in results)
    predicted = (
        None if peer.compile_with_report is None else predict(peer.compile_with_report, case)
    )
    return step, Compiled(seconds, step.min_bytes(), magnitudes, predicted)


def predict(compile_with_report: CompileWithReport, case: Case) -> float:
    """Return the predicted seconds of a step's regions; this compiles again, for the report."""
    compiled, report = compile_with_report(case.target)
    case.drive(compiled).run()
    return sum(r.predicted_us for r in report.regions) / 1e6


def handle(request: Request, step: Step) -> Reply:
    """Answer a request after the first."""
    match request:
        case WarmUp():
            before = memory.reset_peak()
            seconds = [time_step(step)]
            while len(seconds) < MAX_WARM_UP_STEPS and sum(seconds) < WARM_UP_S:
                seconds.append(time_step(step))
            return WarmedUp(min(seconds), max(0, memory.peak() - before))
        case TimedSteps(steps, warm_up_step):
            if warm_up_step:
                step.run()  # wakes the threads and refills the caches after another peer's round
            return StepTime(statistics.median(time_step(step) for _ in range(steps)))
        case FirstStep():
            raise AssertionError("there is one first step")


def time_step(step: Step) -> float:
    """Return the seconds of a step, including freeing its results."""
    start = time.perf_counter()
    step.run()
    return time.perf_counter() - start


def describe_error(error: Exception) -> str:
    """Return an error in one line, truncated; of an error that a compiler wraps, the inner one."""
    inner = getattr(
        error, "inner_exception", None
    )  # the attribute of Dynamo's and Inductor's errors
    if isinstance(inner, Exception):
        return describe_error(inner)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)}"[:MAX_REASON_CHARACTERS]


if __name__ == "__main__":
    main(sys.argv[1:])
