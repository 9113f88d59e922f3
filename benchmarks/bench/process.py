"""The bench's side of a worker: start it, ask it, learn why it died."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from signal import Signals
from typing import IO, TypeVar

from benchmarks.bench.messages import Failed, Reply, Request
from benchmarks.bench.peers import Peer
from benchmarks.seeds import Size

ROOT = Path(__file__).parents[2]
GOODBYE_S = 5.0

R = TypeVar("R", bound=Reply)


class WorkerFailed(Exception):
    """A worker gave up, died, or did not answer in time; says which and why."""


class Worker:
    """A running worker."""

    def __init__(
        self, process: subprocess.Popen[bytes], link: Connection, errors: IO[bytes]
    ) -> None:
        self.process, self.link, self.errors = process, link, errors

    def ask(self, request: Request, kind: type[R], limit_s: float) -> R:
        """Send a request and wait for the answer."""
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have left word why
            self.link.send(request)
        return self.hear(kind, limit_s)

    def hear(self, kind: type[R], limit_s: float) -> R:
        """Wait for an answer of that kind; raises WorkerFailed if none comes."""
        try:
            if not self.link.poll(limit_s):
                raise WorkerFailed(f"no answer in {limit_s:.0f} s")
            reply: Reply = self.link.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerFailed(self.last_words()) from None
        if isinstance(reply, Failed):
            raise WorkerFailed(reply.reason)
        assert isinstance(reply, kind)
        return reply

    def last_words(self) -> str:
        """How the process ended, and the last line it wrote."""
        try:
            code = self.process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            return "it hung up"
        how = f"exit status {code}" if code >= 0 else f"killed by {Signals(-code).name}"
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1].strip()}" if lines else how


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for as long as the context lasts; files that a dying worker still makes may stay."""
    with tempfile.TemporaryDirectory(prefix="tofuse-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def started(peer: Peer, workload: str, size: Size, caches: Path) -> Iterator[Worker]:
    """A worker for as long as the context lasts; its caches lie in the folder."""
    here, there = Pipe()
    with tempfile.TemporaryFile() as errors, here:
        with there:
            descriptor = there.fileno()
            command = (sys.executable, "-m", "benchmarks.bench.worker", str(descriptor))
            process = subprocess.Popen(
                [*command, peer.name, workload, size],
                env=peer.environment(caches),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[descriptor],
            )
        try:
            yield Worker(process, here, errors)
        finally:
            here.close()
            try:
                process.wait(GOODBYE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
