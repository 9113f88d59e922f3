"""The benchmark's side of a worker process: start it, send requests, report failures."""

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

REPOSITORY = Path(__file__).parents[2]
EXIT_LIMIT_S = 5.0

R = TypeVar("R", bound=Reply)


class WorkerFailed(Exception):
    """A worker failed, died, or did not answer in time."""


class Worker:
    """A running worker process."""

    def __init__(
        self, process: subprocess.Popen[bytes], connection: Connection, errors: IO[bytes]
    ) -> None:
        self.process, self.connection, self.errors = process, connection, errors

    def ask(self, request: Request, kind: type[R], limit_s: float) -> R:
        """Send a request and wait for the answer."""
        with suppress(BrokenPipeError, ConnectionResetError):  # a Failed message may be waiting
            self.connection.send(request)
        return self.receive(kind, limit_s)

    def receive(self, kind: type[R], limit_s: float) -> R:
        """Wait for an answer of that kind; raise WorkerFailed if none comes."""
        try:
            if not self.connection.poll(limit_s):
                raise WorkerFailed(f"no answer in {limit_s:.0f} s")
            reply: Reply = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerFailed(self.exit_message()) from None
        if isinstance(reply, Failed):
            raise WorkerFailed(reply.reason)
        assert isinstance(reply, kind)
        return reply

    def exit_message(self) -> str:
        """Return how the process ended, and the last line that it wrote."""
        try:
            code = self.process.wait(EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            return "the worker closed the connection"
        status = f"exit status {code}" if code >= 0 else f"killed by {Signals(-code).name}"
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"{status}: {lines[-1].strip()}" if lines else status


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a temporary folder; files that a dying worker still writes may remain."""
    with tempfile.TemporaryDirectory(prefix="tofuse-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def start_worker(peer: Peer, workload: str, size: Size, caches: Path) -> Iterator[Worker]:
    """Yield a worker that uses the given cache folder."""
    bench_end, worker_end = Pipe()
    with tempfile.TemporaryFile() as errors, bench_end:
        with worker_end:
            descriptor = worker_end.fileno()
            command = (sys.executable, "-m", "benchmarks.bench.worker", str(descriptor))
            process = subprocess.Popen(
                [*command, peer.name, workload, size],
                env=peer.environment(caches),
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[descriptor],
            )
        try:
            yield Worker(process, bench_end, errors)
        finally:
            bench_end.close()
            try:
                process.wait(EXIT_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
