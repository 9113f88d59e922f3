"""Compile in the background: other processes capture calls and write code to the disk cache.

A process is forked, so that it has the function and its arguments. It runs on one thread at the
lowest priority, and compiles a call without running it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from tofuse.cache.guarded_codes import MAX_CODES
from tofuse.driver.hand_back import kind_of_call
from tofuse.torch_internals.dispatch import has_saved_tensor_hooks

LOWEST_PRIORITY = 19  # as in nice(1)
CORES_PER_PROCESS = 8  # for each so many cores, one process may compile
ATTEMPTS = 3  # for one kind of call, because of state that is no part of the kind
SECONDS_BETWEEN_CHECKS = 0.001
SECONDS_ASLEEP = 60.0  # after which a process is given up: it waits for a lock of a lost thread
# Returns why the code of a call is not on disk, or "".
Capture = Callable[[Sequence[object], Mapping[str, object]], str]


@dataclass(eq=False)
class Compilation:
    """A process that compiles one call.

    `outcome` is why the code is not on disk, "" if it is, and None while the process runs.
    """

    process: BaseProcess
    connection: Connection
    patience: float
    outcome: str | None = None
    cpu_ticks: str = ""
    last_progress: float = field(default_factory=time.monotonic)

    def check(self) -> None:
        """Set the outcome if the process has ended, or waits for something that never comes."""
        if self.connection.poll():
            try:
                self.outcome = str(self.connection.recv())
            except EOFError:
                self.process.join()
                self.outcome = f"the process that compiled ended with {self.process.exitcode}"
        elif self._is_stuck():
            self.process.kill()
            self.outcome = f"the process that compiled did nothing for {self.patience:.0f} seconds"
        if self.outcome is not None:
            self.process.join()
            self.connection.close()

    def _is_stuck(self) -> bool:
        now = time.monotonic()
        if now < self.last_progress + self.patience / 4:
            return False
        with suppress(OSError):
            text = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii")
            state, *numbers = text.rpartition(")")[2].split()  # see proc_pid_stat(5)
            ticks = " ".join(numbers[10:12])
            if state != "S" or ticks != self.cpu_ticks:
                self.cpu_ticks, self.last_progress = ticks, now
        return now >= self.last_progress + self.patience


@dataclass(eq=False)
class BackgroundQueue:
    """The compilations in the background of one process.

    At most `limit` processes run. One that sleeps for `patience` seconds is given up.
    """

    limit: int = field(default_factory=lambda: max(1, (os.cpu_count() or 1) // CORES_PER_PROCESS))
    patience: float = SECONDS_ASLEEP
    running: list[Compilation] = field(default_factory=list)
    succeeded: int = 0
    failed: int = 0
    waits: int = 0
    next_check: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def begin(
        self, capture: Capture, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Compilation | None:
        """Begin to compile a call; return None if as many processes run as may.

        Raises OSError if no process can be started.
        """
        with self.lock:
            self.check()
            if len(self.running) >= self.limit:
                return None
            receiving, sending = multiprocessing.Pipe(duplex=False)
            process = multiprocessing.get_context("fork").Process(
                target=_compile, args=(sending, capture, args, kwargs), daemon=True
            )
            with warnings.catch_warnings():
                # Python warns of forks beside other threads, whose locks stay locked. The locks of
                # compilation are waited for (see driver/fork.py), stuck processes are given up.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            sending.close()
            compilation = Compilation(process, receiving, self.patience)
            self.running.append(compilation)
            return compilation

    def check(self) -> None:
        """Look for compilations that have ended, at most once in a millisecond."""
        now = time.monotonic()
        if not self.running or now < self.next_check:
            return
        with self.lock:
            self.next_check = now + SECONDS_BETWEEN_CHECKS
            for compilation in self.running:
                compilation.check()
            ended = [c.outcome for c in self.running if c.outcome is not None]
            self.running = [c for c in self.running if c.outcome is None]
            self.succeeded += ended.count("")
            self.failed += len(ended) - ended.count("")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no compilation runs, or for `timeout` seconds; return whether none runs."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        self.waits += 1
        while self.running and time.monotonic() < end:
            longest = min(end - time.monotonic(), self.patience / 4)
            connection.wait([c.connection for c in self.running], max(0.0, longest))
            self.next_check = 0.0
            self.check()
        return not self.running

    def stats(self) -> dict[str, int]:
        """Return how many compilations run, have succeeded and have failed."""
        self.check()
        return {
            "running": len(self.running),
            "succeeded": self.succeeded,
            "failed": self.failed,
        }

    def forget(self) -> None:
        """Forget the compilations, which are the parent's, in a forked process."""
        self.running, self.lock = [], threading.RLock()


QUEUE = BackgroundQueue()


@dataclass(eq=False)
class BackgroundCompiler:
    """The compilations in the background of one function.

    `owner` is the compiled module or function, `eager` what runs it uncompiled. `report` receives
    the reason if a call is compiled in the foreground.
    """

    capture: Capture
    eager: Callable[..., object]
    owner: object
    report: Callable[[str], None]
    queue: BackgroundQueue = field(default_factory=lambda: QUEUE)
    running: tuple[Hashable, Compilation] | None = None
    attempts: Counter[Hashable] = field(default_factory=Counter)  # by kind of call
    foreground: set[Hashable] = field(default_factory=set)  # kinds
    waits: int = field(default_factory=lambda: QUEUE.waits)

    @property
    def is_held(self) -> bool:
        """Whether compiled code must not run yet, so that results do not depend on times.

        Under deterministic algorithms, code runs after the first `wait` only.
        """
        return self.queue.waits == self.waits and torch.are_deterministic_algorithms_enabled()

    def has_result(self) -> bool:
        """Return whether a compilation has just written code to disk."""
        running = self.running  # another thread may set it
        if running is None:
            return False
        self.queue.check()
        kind, compilation = running
        if compilation.outcome is None:
            return False
        self.running = None
        if compilation.outcome:
            self._give_up(kind, compilation.outcome)
        return not compilation.outcome

    def takes(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Return whether eager runs a call for which there is no compiled code.

        While hooks for saved tensors are active it does not: a checkpoint compares what a call and
        its repetition save.
        """
        if has_saved_tensor_hooks():
            return False
        if self.running is not None and not self.foreground:
            return True
        kind = self._kind(args, kwargs)
        if kind in self.foreground:
            return False
        reason = "" if self.running is not None else self._obstacle(kind)
        if reason:
            self._give_up(kind, reason)
        return not reason

    def begin(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Begin to compile a call that eager has run, unless other compilations run."""
        if self.running is not None:
            return
        kind = self._kind(args, kwargs)
        try:
            begun = self.queue.begin(self.capture, args, kwargs)
        except OSError as error:
            self._give_up(kind, f"no process can be started: {error}")
            return
        if begun is not None:
            self.attempts[kind] += 1
            self.running = kind, begun

    def _kind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
        return kind_of_call(args, kwargs), getattr(self.owner, "training", None)

    def _obstacle(self, kind: Hashable) -> str:
        """Return why no other process can compile a kind of call, or ""."""
        if self.attempts[kind] >= ATTEMPTS:
            return "compiled code is on disk, but its guards do not hold for the call"
        if kind not in self.attempts and len(self.attempts) >= MAX_CODES:
            return f"there are {MAX_CODES} other kinds of calls, such as sizes"
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return "the process belongs to a process group"
        if torch.cuda.is_initialized():
            return "the process uses a GPU, which a fork cannot"
        if sys.platform != "linux" or multiprocessing.current_process().daemon:
            return "the process cannot be forked"
        if self.queue.waits != self.waits and torch.are_deterministic_algorithms_enabled():
            return "results must not depend on when a compilation ends"
        return ""

    def _give_up(self, kind: Hashable, reason: str) -> None:
        self.foreground.add(kind)
        self.report(f"calls of one kind are compiled in the foreground: {reason}")


def _compile(
    sending: Connection, capture: Capture, args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """Compile a call in this process, which was forked for it, and send the outcome."""
    os.nice(LOWEST_PRIORITY)
    logging.disable()
    for number in signal.valid_signals():  # handlers are the parent's, such as one that saves
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the parent ends this process
    with Path(os.devnull).open("w", encoding="utf-8") as null:
        sys.stdout = sys.stderr = null
        for output in (1, 2):
            os.dup2(null.fileno(), output)
        sending.send(capture(args, kwargs))


os.register_at_fork(after_in_child=QUEUE.forget)
