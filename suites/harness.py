"""Runs the cases of a suite in worker processes: resumable, sharded, with a progress bar.

A suite is a module with `run_case(case: str) -> Result`, and with `list_cases() -> list[str]` if
its cases have an end. Each result is appended to `.suites/<suite>.jsonl` as it arrives, so that a
stopped run goes on where it was. A worker that dies or hangs fails its case, and a new worker takes
the next one.
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
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".suites"
SECONDS_OF_MEASURING_CASE = 600.0  # at most
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


def parse_arguments(description: str, timeout: float = 300.0) -> argparse.Namespace:
    """Return the options of a suite that lists its cases."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", default="", help="run the cases whose name contains this text")
    parser.add_argument("--shard", default="1/1", help="run the k-th of n parts: 2/5")
    parser.add_argument("--fresh", action="store_true", help="run again what has a result")
    parser.add_argument("--failed", action="store_true", help="run again what failed")
    add_worker_options(parser, timeout)
    return parser.parse_args()


def add_worker_options(parser: argparse.ArgumentParser, timeout: float = 300.0) -> None:
    """Add the options of worker processes, which every suite has."""
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--timeout", type=float, default=timeout, help="seconds for one case")


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
    for result in journal(suite, run_in_workers(module, chosen, arguments, suite), folder):
        results[result.case] = result
    known = set(cases)
    return {case: result for case, result in results.items() if case in known}


def journal(suite: str, results: Iterable[Result], folder: Path = RESULTS) -> Iterator[Result]:
    """Pass results on, and append each to the suite's journal."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{suite}.jsonl"
    with path.open("a") as file:
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            file.write("\n")  # end a line that a killed run cut off
        for result in results:
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")
            file.flush()
            yield result


def summarize(results: dict[str, Result]) -> str:
    """Return the number of cases of each status, and one line for each failure."""
    counts = Counter(result.status for result in results.values())
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"{result.case}: {result.detail}" for result in results.values() if result.failed]
    return "\n".join([", ".join(f"{n} {status}" for status, n in ranked), *lines])


def run_and_write_page(
    module: str, suite: str, description: str, path: Path, page: Callable[[dict[str, Result]], str]
) -> None:
    """Run a suite as the command line says, and write its page; exit with 1 if a case fails."""
    results = run_suite(module, suite, parse_arguments(description, SECONDS_OF_MEASURING_CASE))
    print(summarize(results))
    path.write_text(page(results))
    raise SystemExit(any(result.failed for result in results.values()))


def run_process(
    module: str, arguments: Sequence[str], cache: Path, timeout: float | None = None
) -> str:
    """Run a module in a process with a folder for its caches; return the last line it prints."""
    environment = {
        **os.environ,
        "TOFUSE_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "OMP_NUM_THREADS": str(os.cpu_count()),
    }
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip().rpartition("\n")[2]


def run_in_workers(
    module: str,
    cases: Iterable[str],
    arguments: argparse.Namespace,
    title: str,
    seconds: float | None = None,
) -> Iterator[Result]:
    """Run cases in worker processes; give the results as they arrive.

    With `seconds`, cases may be endless: none starts after that time.
    """
    listed = list(cases) if seconds is None else cases
    waiting = _Queue(iter(listed), seconds)
    jobs = min(arguments.jobs, len(listed)) if isinstance(listed, list) else arguments.jobs
    finished: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    threads: list[threading.Thread] = []
    for _ in range(jobs):
        feeder = (module, waiting, finished, arguments.timeout)
        threads.append(threading.Thread(target=_feed_workers, args=feeder, daemon=True))
        threads[-1].start()
    failures = 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if seconds is None else TextColumn("{task.fields[count]} cases"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        total = len(listed) if isinstance(listed, list) else seconds
        bar = progress.add_task(title, total=total, count=0)
        count = 0
        while jobs:
            result = finished.get()
            if result is None:
                jobs -= 1
                continue
            count += 1
            failures += result.failed
            if result.failed:
                progress.print(f"{result.status} {result.case}: {result.detail}", markup=False)
            done = count if seconds is None else waiting.elapsed()
            title_now = f"{title}, {failures} failed"
            progress.update(bar, completed=done, description=title_now, count=count)
            yield result
    for thread in threads:
        thread.join()


class _Queue:
    """Cases that several threads take, until a time is over."""

    def __init__(self, cases: Iterator[str], seconds: float | None) -> None:
        self._cases, self._lock = cases, threading.Lock()
        self._seconds, self._start = seconds, time.monotonic()

    def elapsed(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._start

    def take(self) -> str | None:
        """Return the next case; None at the end."""
        if self._seconds is not None and self.elapsed() >= self._seconds:
            return None
        with self._lock:
            return next(self._cases, None)


def _feed_workers(
    module: str,
    waiting: _Queue,
    finished: "queue.SimpleQueue[Result | None]",
    timeout: float,
) -> None:
    """Give cases to one worker after another until none is left."""
    worker = Worker(module)
    while (case := waiting.take()) is not None:
        finished.put(worker.run(case, timeout))
    worker.stop()
    finished.put(None)


class Worker:
    """A process that runs cases of a suite: a new one after a crash, and after many cases."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None
        self._count = 0

    def run(self, case: str, timeout: float) -> Result:
        """Return the result of a case, which is "crashed" if the process died or hung."""
        if self._process is None or self._count == CASES_PER_WORKER:
            self.stop()
            self._process, self._count = _start(self._module), 0
        result = _run_in(self._process, case, timeout)
        self._count += 1
        if result.status == "crashed":
            self.stop()
        return result

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError):  # a case that it did not read
                self._process.communicate()
        self._process = None


def _start(module: str) -> "subprocess.Popen[str]":
    defaults = {"OMP_NUM_THREADS": "1", "TOFUSE_HAND_BACK": "0"}  # call what is compiled
    environment = {**defaults, **os.environ}
    return subprocess.Popen(
        [sys.executable, "-m", "suites.harness", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environment,
    )


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
