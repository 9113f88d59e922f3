"""Launch a group of kernels in one parallel region; threads share the work of all kernels."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tofuse.backends.cpu.runtime.launch import Launcher, workspace
from tofuse.cost.thresholds import (
    MAX_SERIAL_KERNELS,
    MAX_SHARED_WORKSPACE,
    TASKS_PER_THREAD,
    WORK_PER_TASK,
    WORK_PER_THREAD,
)
from tofuse.errors import IndexOutOfRangeError
from tofuse.ir.dims import evaluate
from tofuse.ir.machine_function import Entry

TASK_WORDS = 4
MAX_TEMPLATES = 8  # for different sizes and threads
HEADER_WORDS = 2  # before the rounds, see `backends/cpu/llvm/parallel_driver.py`


@dataclass(frozen=True, eq=False)
class _CallTemplate:
    """The driver's argument block without addresses, for given sizes and threads.

    `arguments` are (position, first, last): where a kernel's words go, and their range among the
    caller's. `workspaces` are (position, byte offset) of addresses in one workspace of
    `workspace_bytes`. `contexts` is the position of the first context. `tasks` keeps the tasks'
    memory alive. `serial`: so few and small kernels that separate calls are faster.
    """

    block: list[int]
    arguments: list[tuple[int, int, int]]
    workspaces: list[tuple[int, int]]
    workspace_bytes: int
    contexts: int
    rounds: int
    tasks: object
    serial: bool


DRIVER_FUNCTIONS = ("kernel", "kernel.tile")  # the names of the driver's functions


class DriverFunctions(NamedTuple):
    """The functions of the driver: its entry, and the one that runs a tile."""

    run: Entry
    tile: Entry


class GroupLauncher:
    """Kernels that can be called together, with the words of all kernels one after the other."""

    def __init__(self, driver: Entry, kernels: Sequence[Launcher]) -> None:
        self.driver, self.kernels = driver, list(kernels)
        ranges, start = [], 0  # of each kernel's words: the first, the first size, the end
        for kernel in kernels:
            sizes = start + kernel.buffers
            ranges.append((start, sizes, sizes + len(kernel.symbols)))
            start = ranges[-1][2]
        self.ranges = ranges
        self.checks_indices = any(k.checks_indices for k in kernels)
        self.template = functools.lru_cache(MAX_TEMPLATES)(self._make_template)

    def __call__(self, *words: int) -> None:
        """Run the kernels; raise IndexOutOfRangeError if a gather finds an index out of range."""
        sizes = [w for _, first, end in self.ranges for w in words[first:end]]
        template = self.template(torch.get_num_threads(), *sizes)
        if template.serial:
            for kernel, (first, _, end) in zip(self.kernels, self.ranges, strict=True):
                kernel(*words[first:end])
            return
        filled = template.block.copy()
        for position, first, end in template.arguments:
            filled[position : position + end - first] = words[first:end]
        if template.workspace_bytes:
            base = workspace(template.workspace_bytes)
            for position, offset in template.workspaces:
                filled[position] = base + offset
        block = (ctypes.c_int64 * len(filled))(*filled)
        contexts = ctypes.addressof(block) + 8 * template.contexts
        for r in range(template.rounds):
            block[HEADER_WORDS + TASK_WORDS * r + 3] = contexts
        self.driver(block)
        if self.checks_indices:
            self._check_status(template, block)

    def _check_status(self, template: _CallTemplate, block: ctypes.Array[ctypes.c_int64]) -> None:
        end = template.contexts
        for kernel in self.kernels:
            end += kernel.context_words
            if block[end - 1]:
                name = kernel.name
                raise IndexOutOfRangeError(
                    f"index out of range in self (in the fused kernel {name})"
                )

    def _make_template(self, threads: int, *sizes: int) -> _CallTemplate:
        remaining = iter(sizes)
        envs = [{symbol: next(remaining) for symbol in k.symbols} for k in self.kernels]
        pairs = list(zip(self.kernels, envs, strict=True))
        work = [evaluate(k.elements, env) * k.work for k, env in pairs]
        spaces = [evaluate(k.workspace_bytes, env) for k, env in pairs]
        threads = max(1, min(threads, int(sum(work) / WORK_PER_THREAD)))
        task_work = max(WORK_PER_TASK, sum(work) / (threads * TASKS_PER_THREAD))
        shares = [
            _share_count(w / task_work, space, threads)
            for w, space in zip(work, spaces, strict=True)
        ]
        return self._fill_template(threads, work, shares, spaces)

    def _fill_template(
        self, threads: int, work: list[float], shares: list[int], spaces: list[int]
    ) -> _CallTemplate:
        rounds = max(len(k.parts) for k in self.kernels)
        contexts = HEADER_WORDS + TASK_WORDS * rounds
        block: list[int] = [0] * contexts
        arguments, workspaces, context_offsets, workspace_bytes = [], [], [], 0
        for kernel, (first, _, end), n, space in zip(
            self.kernels, self.ranges, shares, spaces, strict=True
        ):
            context_offsets.append(8 * (len(block) - contexts))
            arguments.append((len(block), first, end))
            if space:
                workspaces.append((len(block) + end - first, workspace_bytes))
                workspace_bytes += -(-space * n // 64) * 64
            block += [0] * (kernel.context_words - 2) + [n, 0]
        tasks, counts = self._tasks(rounds, work, shares, context_offsets)
        table = (ctypes.c_int64 * len(tasks))(*tasks)
        block[:HEADER_WORDS] = [rounds, threads]
        for r, (start, count) in enumerate(counts):
            position = HEADER_WORDS + TASK_WORDS * r
            block[position : position + 3] = [0, count, ctypes.addressof(table) + 8 * start]
        serial = threads == 1 and len(self.kernels) <= MAX_SERIAL_KERNELS
        return _CallTemplate(
            block, arguments, workspaces, workspace_bytes, contexts, rounds, table, serial
        )

    def _tasks(
        self, rounds: int, work: list[float], shares: list[int], context_offsets: list[int]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the words of all tasks, longest kernel first, and each round's start and count."""
        order = sorted(range(len(work)), key=lambda k: -work[k])
        tasks: list[int] = []
        counts = []
        for r in range(rounds):
            start = len(tasks)
            for k in order:
                for address, parallel in self.kernels[k].parts[r : r + 1]:
                    n = shares[k] if parallel else 1
                    for share in range(n):
                        tasks += (address, context_offsets[k], share, n)
            counts.append((start, (len(tasks) - start) // TASK_WORDS))
        return tasks, counts


def _share_count(wanted: float, space: int, threads: int) -> int:
    """Return into how many shares a kernel's work is divided; `space` is workspace per thread."""
    if threads == 1:
        return 1
    limit = threads if space > MAX_SHARED_WORKSPACE else TASKS_PER_THREAD * threads
    return max(1, min(round(wanted), limit))
