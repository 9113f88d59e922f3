"""Forks while another thread compiles: the child finds no lock that a lost thread holds."""

from __future__ import annotations

import os
from contextlib import suppress

from tofuse.backends.cpu.llvm.load import CODE
from tofuse.backends.cpu.llvm.machine_code import CODEGEN_LOCK
from tofuse.driver.background import QUEUE
from tofuse.torch_internals.dynamo import compile_lock

LOCKS = (compile_lock, CODE.lock, CODEGEN_LOCK)  # in the order in which compilation takes them
LONGEST_WAIT = 60.0  # seconds: the compilation may wait for the thread that forks


def wait_for_compilations() -> None:
    """Take the locks of compilation, so that no other thread compiles while this one forks."""
    for lock in LOCKS:
        lock.acquire(timeout=LONGEST_WAIT)


def release_locks() -> None:
    """Release the locks that `wait_for_compilations` took, in the parent and in the child."""
    for lock in reversed(LOCKS):
        with suppress(RuntimeError):  # another thread has it still
            lock.release()


def register_fork_handlers() -> None:
    """Make forks wait for compilations in other threads, and forget those in the background."""
    if os.name == "posix":
        os.register_at_fork(
            before=wait_for_compilations,
            after_in_parent=release_locks,
            after_in_child=release_locks,
        )
        os.register_at_fork(after_in_child=QUEUE.forget)
