"""Runs the cases of a suite in worker processes: resumable, sharded, with a progress bar.

A suite is a module with `list_cases() -> list[str]` and `run_case(case: str) -> Result`. Each
result is appended to `.suites/<suite>.jsonl` as it arrives, so that a stopped run goes on where it
was. A worker that dies or hangs fails its case, and a new worker takes the next one.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".suites"
CASES_PER_WORKER = 200  # then a new process: torch and tofuse keep what they compiled


@dataclasses.dataclass(frozen=True)
class Result:
    """What one case gave: `status` is "failed", "crashed", or a word of the suite's own."""

    case: str
    status: str
    detail: str = ""
    data: dict[str, str | int | float | list[str]] = dataclasses.field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.status in ("failed", "crashed")


class Suite(Protocol):
    """The functions that a suite's module has."""

    def list_cases(self) -> list[str]: ...

    def run_case(self, case: str) -> Result: ...


def load_results(suite: str, folder: Path = RESULTS) -> dict[str, Result]:
    """Return the latest result of each case that ran, by the case's name."""
    results = {}
    path = folder / f"{suite}.jsonl"
    if path.exists():
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # a line cut off by a killed run
                result = Result(**json.loads(line))
                results[result.case] = result
    return results


def parse_arguments(description: str) -> argparse.Namespace:
    """Return the options that every suite has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", default="", help="run the cases whose name contains this text")
    parser.add_argument("--shard", default="1/1", help="run the k-th of n parts: 2/5")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one case")
    parser.add_argument("--fresh", action="store_true", help="run again what has a result")
    parser.add_argument("--failed", action="store_true", help="run again what failed")
    return parser.parse_args()


def select_cases(
    cases: Iterable[str], done: dict[str, Result], arguments: argparse.Namespace
) -> list[str]:
    """Return the cases that the options name and that still have to run."""
    part, parts = (int(n) for n in arguments.shard.split("/"))
    if not 1 <= part <= parts:
        raise SystemExit(f"--shard {arguments.shard}: the first number goes from 1 to {parts}")
    chosen = [case for case in list(cases)[part - 1 :: parts] if arguments.only in case]
    if arguments.failed:
        return [case for case in chosen if case in done and done[case].failed]
    return [case for case in chosen if arguments.fresh or case not in done]


def run_suite(
    module: str, suite: str, arguments: argparse.Namespace, folder: Path = RESULTS
) -> dict[str, Result]:
    """Run the chosen cases of a suite; return the results of all its cases that ever ran."""
    loaded: Suite = importlib.import_module(module)
    results = load_results(suite, folder)
    cases = loaded.list_cases()
    chosen = select_cases(cases, results, arguments)
    folder.mkdir(exist_ok=True)
    path = folder / f"{suite}.jsonl"
    with path.open("a") as journal:
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            journal.write("\n")  # end a line that a killed run cut off
        for result in _run_in_workers(module, chosen, arguments, suite):
            journal.write(json.dumps(dataclasses.asdict(result)) + "\n")
            journal.flush()
            results[result.case] = result
    known = set(cases)
    return {case: result for case, result in results.items() if case in known}


def summarize(results: dict[str, Result]) -> str:
    """Return the number of cases of each status, and one line for each failure."""
    counts = Counter(result.status for result in results.values())
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"{result.case}: {result.detail}" for result in results.values() if result.failed]
    return "\n".join([", ".join(f"{n} {status}" for status, n in ranked), *lines])


def _run_in_workers(
    module: str, cases: Sequence[str], arguments: argparse.Namespace, title: str
) -> Iterable[Result]:
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    finished: queue.SimpleQueue[Result] = queue.SimpleQueue()
    threads = [
        threading.Thread(
            target=_feed_workers, args=(module, waiting, finished, arguments.timeout), daemon=True
        )
        for _ in range(min(arguments.jobs, len(cases)))
    ]
    for thread in threads:
        thread.start()
    failures = 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        bar = progress.add_task(title, total=len(cases))
        for _ in cases:
            result = finished.get()
            failures += result.failed
            if result.failed:
                progress.print(f"{result.status} {result.case}: {result.detail}", markup=False)
            progress.update(bar, advance=1, description=f"{title}, {failures} failed")
            yield result
    for thread in threads:
        thread.join()


def _feed_workers(
    module: str,
    waiting: "queue.SimpleQueue[str]",
    finished: "queue.SimpleQueue[Result]",
    timeout: float,
) -> None:
    """Give cases to one worker after another until none is left."""
    worker: subprocess.Popen[str] | None = None
    count = 0
    while True:
        try:
            case = waiting.get_nowait()
        except queue.Empty:
            break
        if worker is None or count == CASES_PER_WORKER:
            _stop(worker)
            worker, count = _start(module), 0
        result = _run_in(worker, case, timeout)
        count += 1
        if result.status == "crashed":
            _stop(worker)
            worker = None
        finished.put(result)
    _stop(worker)


def _start(module: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return subprocess.Popen(
        [sys.executable, "-m", "suites.harness", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environment,
    )


def _stop(worker: "subprocess.Popen[str] | None") -> None:
    if worker is not None:
        worker.kill()
        with contextlib.suppress(BrokenPipeError):  # a case that it did not read
            worker.communicate()


def _run_in(worker: "subprocess.Popen[str]", case: str, timeout: float) -> Result:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(case + "\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return Result(case, "crashed", "the worker ended before the case")
    ready, _, _ = select.select([worker.stdout], [], [], timeout)
    if not ready:
        return Result(case, "crashed", f"no result after {timeout:g} s")
    line = worker.stdout.readline()
    if not line:
        code = worker.wait()
        reason = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return Result(case, "crashed", f"the process died: {reason}")
    return Result(**json.loads(line))


def _serve(module: str, answers: IO[str]) -> None:
    suite: Suite = importlib.import_module(module)
    for line in sys.stdin:
        case = line.rstrip("\n")
        try:
            result = suite.run_case(case)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            detail = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            result = Result(case, "failed", detail)
        answers.write(json.dumps(dataclasses.asdict(result)) + "\n")
        answers.flush()


if __name__ == "__main__":
    own_output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what torch prints must not mix with the answers
    _serve(sys.argv[1], own_output)
