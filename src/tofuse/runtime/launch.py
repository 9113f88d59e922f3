"""Call machine code: pack addresses and sizes, choose threads, hand out workspace."""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tofuse.cost.work import kernel_work, threads_worth
from tofuse.ir.dims import Dim, evaluate, hint, product, symbols_of
from tofuse.ir.kernel import Kernel, Take

Entry = Callable[[object], int]


@dataclass(frozen=True)
class Part:
    """A function of a kernel, `void (ptr context, i64 share, i64 shares)`; parts run one after the
    other. One that is not `shared` has one share."""

    address: int
    shared: bool


@dataclass(frozen=True)
class KernelCode:
    """What there is to know of a kernel to call it; its text is known by its digest.

    `parts` are functions of it by name, and whether they are shared. `checks`: it may find an index
    out of range. `elements` and `work` tell how many threads are worth their while.
    """

    name: str
    text: str
    parts: tuple[tuple[str, bool], ...]
    buffers: int
    symbols: tuple[str, ...]
    block_bytes: Dim
    elements: Dim
    work: float
    checks: bool


def kernel_code(
    kernel: Kernel, text: str, parts: Sequence[tuple[str, bool]], block_bytes: Dim
) -> KernelCode:
    """What there is to know of a kernel whose text has this digest."""
    return KernelCode(
        kernel.name,
        text,
        tuple(parts),
        len(kernel.buffers),
        tuple(kernel.symbols),
        block_bytes,
        product(a.extent for a in kernel.axes),
        kernel_work(kernel),
        any(isinstance(s, Take) for s in kernel.body),
    )


class Launcher:
    """A kernel ready to be called with the addresses of its buffers, then its size symbols."""

    def __init__(self, code: KernelCode, entry: Entry, parts: Sequence[Part]) -> None:
        self.code, self.entry, self.name, self.parts = code, entry, code.name, tuple(parts)
        self.checks, self.buffers, self.symbols = code.checks, code.buffers, code.symbols
        self.block_bytes, self.elements, self.work = code.block_bytes, code.elements, code.work
        self.words = self.buffers + len(self.symbols) + 3
        # bytes are made faster than an array, but are not to be written: a check writes its result
        self.context: Callable[..., object] = struct.Struct(f"{self.words}q").pack
        if self.checks:
            self.context = ctypes.c_int64 * self.words
        self.static = not symbols_of(self.elements) and not symbols_of(self.block_bytes)
        self.limit = threads_worth(hint(self.elements), self.work)
        self.block = hint(self.block_bytes)

    def __call__(self, *words: int) -> None:
        """Run; raises IndexError where a gather met an index out of range."""
        limit, block = self.limit, self.block
        if not self.static:
            env = dict(zip(self.symbols, words[self.buffers :], strict=True))
            limit = threads_worth(evaluate(self.elements, env), self.work)
            block = evaluate(self.block_bytes, env)
        threads = 1 if limit <= 1 else min(limit, torch.get_num_threads())
        if block:
            space = workspace(block * threads)
            status = self.entry(self.context(*words, space, threads, 0))
        else:
            status = self.entry(self.context(*words, 0, threads, 0))
        if status:
            raise IndexError(f"index out of range in self (in the fused kernel {self.name})")


_local = threading.local()


def workspace(nbytes: int) -> int:
    """The address of this Python thread's scratch memory, 64-byte aligned, grown as needed."""
    space = getattr(_local, "space", None)
    if space is None or space.numel() < nbytes + 64:
        space = _local.space = torch.empty(nbytes + 64, dtype=torch.uint8)
    return -(-int(space.data_ptr()) // 64) * 64


def thread_count() -> int:
    """How many threads torch uses now."""
    return torch.get_num_threads()


@functools.cache
def find_vector_library() -> ctypes.CDLL | None:
    """The library of elementary functions over vectors that torch is linked with."""
    for path in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None


def find_openmp() -> ctypes.CDLL | None:
    """The OpenMP runtime that torch runs its own threads with; None where there is none."""
    names = [str(p) for p in (Path(torch.__file__).parent / "lib").glob("lib*omp*")]
    for name in [*names, None]:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        try:
            library.GOMP_parallel  # noqa: B018  (looked up when touched)
        except AttributeError:
            continue
        return library
    return None
