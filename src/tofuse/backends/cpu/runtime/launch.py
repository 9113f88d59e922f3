"""Launch a CPU kernel: pack its arguments, choose the threads, provide workspace."""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from tofuse.backends.cpu.cost.threads import threads_worth
from tofuse.backends.cpu.runtime.pool import POOL
from tofuse.errors import IndexOutOfRangeError
from tofuse.ir.dims import Dim, evaluate, size_hint, symbols_of
from tofuse.ir.machine_function import Entry, function_address


@dataclass(frozen=True)
class KernelCode:
    """The data needed to load and call a kernel; its code is found by the digest of its text.

    `parts` are names of functions that run one after the other, each `void (ptr context,
    i64 share, i64 shares)`, and whether each is parallel; the others have one share.
    `checks_indices`: the kernel reports indices out of range. `workspace_bytes` are per thread.
    `elements` and `work` (per element) determine the number of threads.
    """

    name: str
    text_digest: str
    parts: tuple[tuple[str, bool], ...]
    buffers: int
    symbols: tuple[str, ...]
    workspace_bytes: Dim
    elements: Dim
    work: float
    checks_indices: bool


class Launcher:
    """A kernel that can be called with the addresses of its buffers, then its size symbols.

    The machine code takes one block of 64-bit words, the context: the arguments of the call, the
    workspace's address, the number of threads, and the status of index checks.
    """

    host_seeds: tuple[int, ...] = ()  # an address is an address: all memory is the host's

    def __init__(self, code: KernelCode, entry: Entry, parts: Sequence[Entry]) -> None:
        self.code, self.entry, self.name = code, entry, code.name
        self.part_functions = parts  # whose addresses are in `parts`
        self.parts = [(function_address(f), p) for f, (_, p) in zip(parts, code.parts, strict=True)]
        self.buffers, self.symbols = code.buffers, code.symbols
        self.elements, self.work = code.elements, code.work
        self.checks_indices, self.workspace_bytes = code.checks_indices, code.workspace_bytes
        self.context_words = self.buffers + len(self.symbols) + 3
        # packing bytes is faster than making an array, but index checks write their status
        self.make_context: Callable[..., object] = struct.Struct(f"{self.context_words}q").pack
        if self.checks_indices:
            self.make_context = ctypes.c_int64 * self.context_words
        self.is_static = not symbols_of(self.elements) and not symbols_of(self.workspace_bytes)
        self.static_threads = threads_worth(size_hint(self.elements), self.work)
        self.static_workspace = size_hint(self.workspace_bytes)

    def __call__(self, *words: int) -> None:
        """Run the kernel; raise IndexOutOfRangeError if a gather finds an index out of range."""
        useful_threads, thread_workspace = self.static_threads, self.static_workspace
        if not self.is_static:
            env = dict(zip(self.symbols, words[self.buffers :], strict=True))
            useful_threads = threads_worth(evaluate(self.elements, env), self.work)
            thread_workspace = evaluate(self.workspace_bytes, env)
        threads = 1 if useful_threads <= 1 else min(useful_threads, torch.get_num_threads())
        if thread_workspace:
            address = workspace(thread_workspace * threads)
            status = self.entry(self.make_context(*words, address, threads, 0))
        else:
            status = self.entry(self.make_context(*words, 0, threads, 0))
        if status:
            place = f"in the fused kernel {self.name}"
            raise IndexOutOfRangeError(f"index out of range in self ({place})")


_local = threading.local()


def workspace(nbytes: int) -> int:
    """Return the address of this Python thread's workspace, 64-byte aligned, grown as needed."""
    space = getattr(_local, "space", None)
    if space is None or space.numel() < nbytes + 64:
        space = _local.space = POOL.allocate((nbytes + 64,), (1,), torch.uint8)
    return -(-int(space.data_ptr()) // 64) * 64


def thread_count() -> int:
    """Return how many threads torch uses now."""
    return torch.get_num_threads()


@functools.cache
def find_vector_library() -> ctypes.CDLL | None:
    """Return the library of vector elementary functions that torch is linked with, if any."""
    for path in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"):
        with suppress(OSError):
            return ctypes.CDLL(str(path))
    return None


def find_openmp() -> ctypes.CDLL | None:
    """Return the OpenMP runtime that runs torch's threads; None if there is none."""
    names = [str(p) for p in (Path(torch.__file__).parent / "lib").glob("lib*omp*")]
    for name in [*names, None]:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            library.GOMP_parallel  # noqa: B018  (looked up when touched)
            return library
    return None
