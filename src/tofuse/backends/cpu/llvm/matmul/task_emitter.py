"""LLVM IR that runs the nests of blocks: their contexts on the stack, and calls of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tofuse.backends.cpu.llvm.emit import NONTEMPORAL_METADATA
from tofuse.backends.cpu.llvm.entry import (
    PART_PARAMETERS,
    WHOLE_PART,
    context_word,
    context_words,
    entry_function,
    part_range,
    worker_function,
)
from tofuse.backends.cpu.llvm.ir_text import ALIGNED_STACK, FunctionBuilder, size_operand
from tofuse.backends.cpu.llvm.matmul.gemm_context import minimum
from tofuse.ir.blocked import first_index, iterations
from tofuse.ir.dims import Dim
from tofuse.ir.kernel import Gather, Kernel
from tofuse.ir.nest import Nest


@dataclass(eq=False)
class _LocalContext:
    """The context of a nest, on the stack; `slots` are the addresses of its words by name."""

    base: str
    slots: Mapping[str, str]
    status: str


class TaskEmitter:
    """Emits the function of one thread's share of the tasks of a kernel whose parts are nests.

    `origins` are the first indices of the current block, by axis.
    """

    def __init__(
        self, kernel: Kernel, nests: Sequence[Nest], block_bytes: int, scratch: int
    ) -> None:
        f = self.f = FunctionBuilder()
        self.kernel, self.scratch = kernel, scratch
        self.origins: dict[str, str] = {}
        self.buffers = {b.name: context_word(f, k, "ptr") for k, b in enumerate(kernel.buffers)}
        first = len(kernel.buffers)
        self.sizes = {s: context_word(f, k) for k, s in enumerate(kernel.symbols, first)}
        workspace = context_word(f, context_words(kernel) - 3, "ptr")
        start = f.let(f"mul i64 %thread, {block_bytes}")
        self.workspace = f.let(f"getelementptr i8, ptr {workspace}, i64 {start}")
        self.contexts = {nest: self._local_context(nest.kernel) for nest in nests}

    def finish(self) -> str:
        """Return the text of the function."""
        self._report_status()
        head = f"define void @{self.kernel.name}.slice0({PART_PARAMETERS})"
        return self.f.text(f"{head} noinline nounwind {ALIGNED_STACK}")

    def module(self, texts: Sequence[str], declarations: dict[str, str]) -> str:
        """Return the module of the kernel, from the texts of its functions without the entry."""
        declarations |= self.f.declarations
        worker = worker_function(self.kernel, 0, declarations)
        entry = entry_function(self.kernel, [(True, False)], declarations)
        functions = [*texts, worker, entry]
        return "\n".join([*declarations.values(), "", *functions, NONTEMPORAL_METADATA])

    def share_of(self, tasks: str) -> tuple[str, str]:
        """Return the first of this thread's share of the tasks, and the first one after it."""
        return part_range(self.f, tasks)

    def call(
        self,
        nest: Nest,
        origins: Mapping[str, str],
        counts: Mapping[str, str],
        pointers: Mapping[str, str],
    ) -> None:
        """Run the nest of a block.

        Along each axis the block begins at the index in `origins`, else at that of the task. It has
        `counts` iterations. `pointers` are the addresses of its own buffers.
        """
        f, context = self.f, self.contexts[nest]
        for name, pointer in pointers.items():
            f.put(f"store ptr {pointer}, ptr {context.slots[name]}")
        words = {first_index(a): i for a, i in {**self.origins, **origins}.items()}
        words |= {iterations(a): n for a, n in counts.items()}
        for name, word in words.items():
            if name in context.slots:
                f.put(f"store i64 {word}, ptr {context.slots[name]}")
        f.put(f"call void @{nest.kernel.name}.slice0(ptr {context.base}, {WHOLE_PART})")

    def extent(self, axis: str) -> str:
        """Return the extent of an axis as an operand."""
        return self.size(self.kernel.extent(axis))

    def size(self, dim: Dim) -> str:
        """Return a size as an operand."""
        return size_operand(self.f, dim, self.sizes)

    def block_count(self, extent: str, block: int) -> str:
        return self.f.let(f"sdiv i64 {self.f.let(f'add i64 {extent}, {block - 1}')}, {block}")

    def remaining(self, extent: str, first: str, most: int) -> str:
        """Return how many iterations a block that begins at `first` has."""
        return minimum(self.f, str(most), self.f.let(f"sub i64 {extent}, {first}"))

    def at(self, offset: int) -> str:
        """Return the address of a part of this thread's workspace."""
        return self.f.let(f"getelementptr i8, ptr {self.workspace}, i64 {offset}")

    def pad_lines(self, to: str, lines: str, stride: int, padding: tuple[str, str]) -> None:
        """Store zeros in 2-byte elements of each line: from the first to the second position."""
        f = self.f
        with f.loop("0", lines, "1") as line, f.loop(*padding, "1") as k:
            place = f.let(f"add i64 {f.let(f'mul i64 {line}, {stride}')}, {k}")
            f.put(f"store i16 0, ptr {f.let(f'getelementptr i16, ptr {to}, i64 {place}')}")

    def _local_context(self, kernel: Kernel) -> _LocalContext:
        """Make the context of a nest, with the words that are the same in every call."""
        f = self.f
        words = context_words(kernel)
        base = f.alloca(f"[{words} x i64]")
        names = [*(b.name for b in kernel.buffers), *kernel.symbols, "", "", ""]
        addresses = [f.let(f"getelementptr i64, ptr {base}, i64 {k}") for k in range(words)]
        slots = {name: a for name, a in zip(names, addresses, strict=True) if name}
        for name, slot in slots.items():
            if name in self.buffers:
                f.put(f"store ptr {self.buffers[name]}, ptr {slot}")
            elif name in self.sizes:
                f.put(f"store i64 {self.sizes[name]}, ptr {slot}")
        scratch, threads, status = addresses[-3:]
        f.put(f"store ptr {self.at(self.scratch)}, ptr {scratch}")
        f.put(f"store i64 1, ptr {threads}")
        f.put(f"store i64 0, ptr {status}")
        return _LocalContext(base, slots, status)

    def _report_status(self) -> None:
        """Report an index out of range that a nest found."""
        f, kernel = self.f, self.kernel
        if not any(isinstance(s, Gather) for s in kernel.body):
            return
        found = "0"
        for context in self.contexts.values():
            found = f.let(f"or i64 {found}, {f.let(f'load i64, ptr {context.status}')}")
        with f.if_then(f.let(f"icmp ne i64 {found}, 0")):
            slot = context_words(kernel) - 1
            f.put(f"store i64 1, ptr {f.let(f'getelementptr i64, ptr %context, i64 {slot}')}")
