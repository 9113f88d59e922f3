"""Compile in the background: other processes capture calls and write code to the disk cache.

Each compilation runs in a forked process, which inherits the function and its arguments. The
process has one thread and the lowest priority; it compiles a call without running it.
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
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from tofuse.backends.cpu.llvm.load import CODE
from tofuse.cache.guarded_codes import MAX_CODES
from tofuse.capture.dynamo.guarded_code import is_watched
from tofuse.dispatch.dispatcher import Entry, Kind, never
from tofuse.torch_internals.dynamo import compile_lock

LOWEST_PRIORITY = 19  # as in nice(1)
CORES_PER_PROCESS = 8  # one compilation per this many cores
ATTEMPTS = 3  # per kind; guards also check other state, such as whether parameters require grad
SECONDS_BETWEEN_CHECKS = 0.001
SECONDS_ASLEEP = 60.0  # a process that sleeps so long is killed: no thread releases its lock
SECONDS_TO_END = 5.0
log = logging.getLogger(__name__)
# Returns why the code of a call is not on disk, or "".
Capture = Callable[[Sequence[object], Mapping[str, object]], str]


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


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
        has_ended = not self.process.is_alive()  # before the look at what it has sent
        if self.connection.poll():
            self.outcome = self._receive()
        elif has_ended:
            self.outcome = self._exit_reason()
        elif self._is_stuck():
            self.outcome = f"the process that compiled did nothing for {self.patience:.0f} seconds"
            self.process.kill()
        if self.outcome is not None:
            self.process.join(SECONDS_TO_END)
            self.process.kill()  # if it does not end
            self.process.join()
            self.connection.close()

    def _receive(self) -> str:
        try:
            return str(self.connection.recv())
        except EOFError:
            self.process.join(SECONDS_TO_END)
            return self._exit_reason()

    def _exit_reason(self) -> str:
        return f"the process that compiled ended with {self.process.exitcode}"

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

    At most `limit` processes run, at a priority as in nice(1). One that sleeps for `patience`
    seconds is given up.
    """

    limit: int = field(default_factory=lambda: max(1, _cores() // CORES_PER_PROCESS))
    patience: float = SECONDS_ASLEEP
    priority: int = LOWEST_PRIORITY
    running: list[Compilation] = field(default_factory=list)
    succeeded: int = 0
    failed: int = 0
    waits: int = 0
    next_check: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def begin(
        self, capture: Capture, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Compilation | None:
        """Begin to compile a call; return None if `limit` processes run, or this process compiles.

        Raises OSError if no process can be started.
        """
        with self.lock:
            self.check()
            if len(self.running) >= self.limit or not compile_lock.acquire(blocking=False):
                return None
            try:
                return self._start(capture, args, kwargs)
            finally:
                compile_lock.release()

    def _start(
        self, capture: Capture, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Compilation:
        receiving, sending = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=_compile, args=(sending, self.priority, capture, args, kwargs), daemon=True
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
        while self.running and time.monotonic() < end:
            time.sleep(SECONDS_BETWEEN_CHECKS)
            self.check()
        self.waits += not self.running
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
    """The compilations in the background of one function, which `eager` runs uncompiled.

    `reload` is called when there is new code on disk.
    """

    capture: Capture
    eager: Callable[..., object]
    reload: Callable[[], None]
    queue: BackgroundQueue = field(default_factory=lambda: QUEUE)
    running: tuple[Hashable, Compilation] | None = None
    attempts: Counter[Hashable] = field(default_factory=Counter)  # by kind of call
    foreground: set[Hashable] = field(default_factory=set)  # kinds
    ended: int = 0  # compilations whose result this function has
    waits: int = field(init=False)  # of the queue, when the function was compiled

    def __post_init__(self) -> None:
        self.waits = self.queue.waits

    @property
    def is_held(self) -> bool:
        """Whether compiled code must not run yet, so that results do not depend on times.

        Under deterministic algorithms, code runs after the first `wait` only.
        """
        return self.queue.waits == self.waits and torch.are_deterministic_algorithms_enabled()

    def collect(self) -> None:
        """Receive the result of the compilation, if it has ended."""
        running = self.running  # another thread may set it
        if running is None:
            return
        self.queue.check()
        kind, compilation = running
        if compilation.outcome is None and compilation in self.queue.running:
            return
        if compilation.outcome:
            self._give_up(kind, compilation.outcome)
        elif compilation.outcome == "":  # None: it is of the process that this is a fork of
            self.reload()
        self.ended += 1
        self.running = None  # last, so that no thread begins before the code is found

    def entry(self, kind: Hashable, ended: int) -> Entry[object]:
        """Return the entry for one call that eager runs, and whose compilation then begins.

        `ended` is what it was when the call found no code.
        """

        def run(*args: object, **kwargs: object) -> object:
            result = self.eager(*args, **kwargs)
            self.begin(kind, args, kwargs, ended)
            return result

        return Entry(Kind.BACKGROUND, never, run, "another process compiles it")

    def takes(self, kind: Hashable) -> bool:
        """Return whether eager runs a call for which there is no compiled code.

        It does not while a mode, a hook for saved tensors (a checkpoint compares what a call and
        its repetition save), a stance or a process group asks for the usual way.
        """
        if is_watched() or kind in self.foreground:
            return False
        if self.running is not None or self.is_held:
            return True
        if kind not in self.attempts and len(self.attempts) >= MAX_CODES:
            return False
        if reason := self._obstacle(kind):
            self._give_up(kind, reason)
        return not reason

    def begin(
        self, kind: Hashable, args: Sequence[object], kwargs: Mapping[str, object], ended: int
    ) -> None:
        """Begin to compile a call that eager has run, unless other compilations run.

        `ended` is what it was when the call found no code. If another thread has received a result
        since then, the code may be there now.
        """
        has_code = self.is_held and kind in self.attempts
        with self.queue.lock:  # of several threads, one begins
            if self.running is not None or self.ended != ended:
                return
            if has_code or self._obstacle(kind):
                return
            try:
                begun = self.queue.begin(self.capture, args, kwargs)
            except OSError as error:
                self._give_up(kind, f"no process can be started: {error}")
                return
            if begun is not None:
                self.attempts[kind] += 1
                self.running = kind, begun

    def _obstacle(self, kind: Hashable) -> str:
        """Return why no other process can compile a kind of call, or ""."""
        if self.attempts[kind] >= ATTEMPTS:
            return "compiled code is on disk, but its guards do not hold for the call"
        if torch.cuda.is_initialized():
            return "the process uses a GPU, which a fork cannot"
        if sys.platform != "linux" or multiprocessing.current_process().daemon:
            return "the process cannot be forked"
        if self.queue.waits != self.waits and torch.are_deterministic_algorithms_enabled():
            return "results must not depend on when a compilation ends"
        return ""

    def _give_up(self, kind: Hashable, reason: str) -> None:
        self.foreground.add(kind)
        log.info("calls of one kind are compiled in the foreground: %s", reason)


def _compile(
    sending: Connection,
    priority: int,
    capture: Capture,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> None:
    """Compile a call in this process, which was forked for it, and send the outcome."""
    os.nice(priority)
    CODE.max_threads = 1
    logging.disable()
    for number in signal.valid_signals():  # handlers are the parent's, such as one that saves
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the parent ends this process
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with Path(os.devnull).open("w", encoding="utf-8") as null:
        sys.stdout = sys.stderr = null
        for output in (1, 2):
            os.dup2(null.fileno(), output)
        sending.send(capture(args, kwargs))


def _end_with(parent: int) -> None:
    """End this process when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
