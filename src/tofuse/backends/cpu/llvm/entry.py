"""LLVM IR of a kernel's entry, which runs its phases one after the other.

The entry is `i32 @name(ptr context)`. The context has 64-bit words: the buffers' addresses, the
size symbols, the address of the workspace, the number of threads, and the status. The entry returns
0, or 1 if a gather met an index out of range. Phase k is a function `@name.slicek` that runs a part
of the phase in the workspace of a thread: of n iterations those from `n * first / whole` to
`n * end / whole`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder
from tofuse.ir.kernel import Kernel

PART_PARAMETERS = "ptr %context, i64 %thread, i64 %first, i64 %end, i64 %whole"
WHOLE_PART = "i64 0, i64 0, i64 1, i64 1"


def part_range(f: FunctionBuilder, count: str) -> tuple[str, str]:
    """Return the first iteration of a part of `count` iterations, and the first one after it."""
    first = f.let(f"sdiv i64 {f.let(f'mul i64 {count}, %first')}, %whole")
    return first, f.let(f"sdiv i64 {f.let(f'mul i64 {count}, %end')}, %whole")


def context_words(kernel: Kernel) -> int:
    """Return the number of 64-bit words in the entry's context."""
    return len(kernel.buffers) + len(kernel.symbols) + 3


def context_word(f: FunctionBuilder, k: int, ty: str = "i64") -> str:
    """Load a word of the context."""
    slot = f.let(f"getelementptr i64, ptr %context, i64 {k}")
    return f.let(f"load {ty}, ptr {slot}")


def thread_count(f: FunctionBuilder, kernel: Kernel) -> str:
    """Load the number of threads from the context."""
    return context_word(f, context_words(kernel) - 2)


def worker_function(kernel: Kernel, k: int, declarations: dict[str, str]) -> str:
    """Return what each thread of the pool runs: every n-th share of phase k, for n threads.

    Add what it calls to `declarations`.
    """
    f, name = FunctionBuilder(), kernel.name
    shares = thread_count(f, kernel)
    thread = f.let(f"sext i32 {f.call('@omp_get_thread_num', 'i32')} to i64")
    step = f.let(f"sext i32 {f.call('@omp_get_num_threads', 'i32')} to i64")
    with f.loop(thread, shares, step) as share:
        end = f.let(f"add i64 {share}, 1")
        part = f"i64 {share}, i64 {share}, i64 {end}, i64 {shares}"
        f.put(f"call void @{name}.slice{k}(ptr %context, {part})")
    declarations |= f.declarations
    return f.text(f"define internal void @{name}.worker{k}(ptr %context) nounwind")


def entry_function(
    kernel: Kernel, phases: Sequence[tuple[bool, bool]], declarations: dict[str, str]
) -> str:
    """Return the entry: all phases in order, in parallel if there are several threads.

    A phase is whether threads share it, and whether their partial results are combined after it.
    Add what the entry calls to `declarations`.
    """
    f, name = FunctionBuilder(), kernel.name
    threads = thread_count(f, kernel)
    is_single = f.let(f"icmp eq i64 {threads}, 1")
    is_parallel = f.let(f"xor i1 {is_single}, true")
    few_threads = f.let(f"trunc i64 {threads} to i32")
    for k, (shared, combined) in enumerate(phases):
        if not shared:
            f.put(f"call void @{name}.slice{k}(ptr %context, {WHOLE_PART})")
            continue
        with f.if_then(is_single):
            f.put(f"call void @{name}.slice{k}(ptr %context, {WHOLE_PART})")
        with f.if_then(is_parallel):
            worker = ("ptr", f"@{name}.worker{k}")
            context, flags = ("ptr", "%context"), ("i32", "0")
            f.call("@GOMP_parallel", "void", worker, context, ("i32", few_threads), flags)
        if combined:
            f.put(f"call void @{name}.combine{k}(ptr %context, {WHOLE_PART})")
    status = context_word(f, context_words(kernel) - 1)
    result = f.let(f"trunc i64 {status} to i32")
    declarations |= f.declarations
    return f.text(f"define i32 @{name}(ptr %context) nounwind", f"ret i32 {result}")
