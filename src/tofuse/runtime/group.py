"""Call many kernels in one parallel region, work shared out over all of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tofuse.cost.work import WORK_PER_THREAD
from tofuse.ir.dims import evaluate
from tofuse.runtime.launch import Entry, Launcher, workspace

TASKS = 8  # shares a thread gets at least, if there is enough work: the last to end is then near
WORK_PER_TASK = WORK_PER_THREAD / 4  # less does not pay for taking a task
TASK_WORDS = 4
HEAD_WORDS = 2  # before the rounds, see `backends/llvm/parallel_driver.py`
FEW = 4  # kernels that one thread calls in less time one by one than together
LARGE_BLOCK = 1 << 14  # bytes of workspace: a kernel with more gets one share a thread


@dataclass(frozen=True, eq=False)
class _Layout:
    """What a call's words are but for addresses: `moves` are (place, first, last) of the caller's
    words, `spaces` (place, offset) of workspace; `tasks` must live as long. `alone`: the kernels
    are so few and small that one call after the other takes less."""

    words: list[int]
    moves: list[tuple[int, int, int]]
    spaces: list[tuple[int, int]]
    space: int
    contexts: int
    rounds: int
    tasks: object
    alone: bool


class Group:
    """Kernels that are called together: with the words of the first, of the second, and so on."""

    def __init__(self, driver: Entry, kernels: Sequence[Launcher]) -> None:
        self.driver, self.kernels = driver, list(kernels)
        starts, at = [], 0
        for kernel in kernels:
            starts.append((at, at + kernel.buffers, at + kernel.buffers + len(kernel.symbols)))
            at = starts[-1][2]
        self.starts = starts
        self.flags = sum(k.checks for k in kernels) > 0
        self.layouts: dict[int, tuple[tuple[int, ...], _Layout]] = {}

    def __call__(self, *words: int) -> None:
        """Run; raises IndexError where a gather met an index out of range."""
        layout = self._layout(torch.get_num_threads(), words)
        if layout.alone:
            for kernel, (first, _, last) in zip(self.kernels, self.starts, strict=True):
                kernel(*words[first:last])
            return
        filled = layout.words.copy()
        for at, first, last in layout.moves:
            filled[at : at + last - first] = words[first:last]
        if layout.space:
            base = workspace(layout.space)
            for at, offset in layout.spaces:
                filled[at] = base + offset
        block = (ctypes.c_int64 * len(filled))(*filled)
        contexts = ctypes.addressof(block) + 8 * layout.contexts
        for r in range(layout.rounds):
            block[HEAD_WORDS + TASK_WORDS * r + 3] = contexts
        self.driver(block)
        if self.flags:
            self._check(layout, block)

    def _check(self, layout: _Layout, block: ctypes.Array[ctypes.c_int64]) -> None:
        at = layout.contexts
        for kernel in self.kernels:
            at += kernel.words
            if block[at - 1]:
                name = kernel.name
                raise IndexError(f"index out of range in self (in the fused kernel {name})")

    def _layout(self, threads: int, words: tuple[int, ...]) -> _Layout:
        """How the work is shared out; found again only for other sizes."""
        sizes = tuple(w for _, a, b in self.starts for w in words[a:b])
        known = self.layouts.get(threads)
        if known is None or known[0] != sizes:
            known = self.layouts[threads] = (sizes, self._share_out(threads, words))
        return known[1]

    def _share_out(self, threads: int, words: tuple[int, ...]) -> _Layout:
        envs = [
            dict(zip(k.symbols, words[a:b], strict=True))
            for k, (_, a, b) in zip(self.kernels, self.starts, strict=True)
        ]
        work = [
            evaluate(k.elements, env) * k.work for k, env in zip(self.kernels, envs, strict=True)
        ]
        threads = max(1, min(threads, int(sum(work) / WORK_PER_THREAD)))
        grain = max(WORK_PER_TASK, sum(work) / (threads * TASKS))
        blocks = [evaluate(k.block_bytes, e) for k, e in zip(self.kernels, envs, strict=True)]
        shares = [_shares(w / grain, block, threads) for w, block in zip(work, blocks, strict=True)]
        return self._lay_out(threads, work, shares, blocks)

    def _lay_out(
        self, threads: int, work: list[float], shares: list[int], blocks: list[int]
    ) -> _Layout:
        rounds = max(len(k.parts) for k in self.kernels)
        contexts = HEAD_WORDS + TASK_WORDS * rounds
        out: list[int] = [0] * contexts
        moves, spaces, places, space = [], [], [], 0
        for kernel, (first, _, last), n, block in zip(
            self.kernels, self.starts, shares, blocks, strict=True
        ):
            places.append(8 * (len(out) - contexts))
            moves.append((len(out), first, last))
            if block:
                spaces.append((len(out) + last - first, space))
                space += -(-block * n // 64) * 64
            out += [0] * (kernel.words - 2) + [n, 0]
        order = sorted(range(len(work)), key=lambda k: -work[k])  # the longest first
        tasks: list[int] = []
        counts = []
        for r in range(rounds):
            start = len(tasks)
            for k in order:
                for part in self.kernels[k].parts[r : r + 1]:
                    n = shares[k] if part.shared else 1
                    for share in range(n):
                        tasks += (part.address, places[k], share, n)
            counts.append((start, (len(tasks) - start) // TASK_WORDS))
        table = (ctypes.c_int64 * len(tasks))(*tasks)
        out[:HEAD_WORDS] = [rounds, threads]
        for r, (start, count) in enumerate(counts):
            at = HEAD_WORDS + TASK_WORDS * r
            out[at : at + 3] = [0, count, ctypes.addressof(table) + 8 * start]
        alone = threads == 1 and len(self.kernels) <= FEW
        return _Layout(out, moves, spaces, space, contexts, rounds, table, alone)


def _shares(wanted: float, block: int, threads: int) -> int:
    """Into how many shares a kernel's work is cut."""
    if threads == 1:
        return 1
    return max(1, min(round(wanted), threads if block > LARGE_BLOCK else TASKS * threads))
