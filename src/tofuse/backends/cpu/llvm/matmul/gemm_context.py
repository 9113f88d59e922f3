"""The context of a matrix product, and the code that all loops over one share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder
from tofuse.backends.cpu.llvm.matmul.microkernel import ACCUMULATE, ADD_BIAS

CONTEXT_WORDS = (
    *("a", "b", "c", "bias"),
    *("pack_a", "pack_b", "microkernel"),
    *("m", "n", "k"),
    *("a_batch", "a_line", "a_depth", "a_stride"),
    *("b_batch", "b_line", "b_depth", "b_stride"),
    *("c_batch", "c_stride"),
    *("bias_batch", "bias_stride", "bias_column", "has_bias"),
    *("depths", "a_depths", "b_depths"),
    *("tasks", "across", "tasks_per_product", "m_step", "n_step"),
    *("rows", "micropanel", "a_step", "workspace", "workspace_per_thread", "threads"),
)
"""The context's 64-bit words, in order. Strides are in elements, sizes of memory in bytes.

A task is a tile of `m_step` by `n_step` of one product of the batch. A product has
`tasks_per_product` tasks, `across` of them in a row. Each result is the sum of `depths` products;
`a_depths` and `b_depths` are the strides between their operands. `a_step` is the stride of packed A
along the sum.
"""


BIAS_IN_PLACE = 2  # as the word `has_bias`


def loops_text(task: str) -> str:
    """Return the text of `i32 @kernel(ptr context)`, which divides the tasks among threads.

    `task` is the text of the function of one thread's tasks.
    """
    return "\n".join([DECLARATIONS, task, WORKER_TEXT, _entry_text()])


def step_flags(f: FunctionBuilder, words: dict[str, str], product: str, k: str, step: int) -> str:
    """Return the flags: accumulate after the first step, add the bias in the last.

    If C holds the bias, which the word `has_bias` then says, accumulate in the first step, too.
    """
    later = f.let(f"icmp ne i64 {f.let(f'or i64 {product}, {k}')}, 0")
    in_place = f.let(f"icmp eq i64 {words['has_bias']}, {BIAS_IN_PLACE}")
    adds_bias = f.let(f"icmp eq i64 {words['has_bias']}, 1")
    holds_sum = f.let(f"or i1 {later}, {in_place}")
    ends_depth = f.let(f"icmp sge i64 {f.let(f'add i64 {k}, {step}')}, {words['k']}")
    ends_products = f.let(f"icmp eq i64 {f.let(f'add i64 {product}, 1')}, {words['depths']}")
    last = f.let(f"and i1 {ends_depth}, {ends_products}")
    accumulate = f.let(f"select i1 {holds_sum}, i64 {ACCUMULATE}, i64 0")
    add_bias = f.let(f"select i1 {f.let(f'and i1 {last}, {adds_bias}')}, i64 {ADD_BIAS}, i64 0")
    return f.let(f"or i64 {accumulate}, {add_bias}")


@contextmanager
def partial_sums(
    f: FunctionBuilder, depth: str, flags: str, steps: int
) -> Iterator[tuple[str, str, str]]:
    """Emit a loop over parts of a block's depth; yield the start, the steps and the flags of each.

    Each part's sum is added to C, so that fewer terms are added one by one. There is one part even
    if the depth is 0.
    """
    end = f.call("@llvm.smax.i64", "i64", ("i64", depth), ("i64", "1"))
    with f.loop("0", end, str(steps)) as k:
        after = f.let(f"add i64 {k}, {steps}")
        is_first = f.let(f"icmp eq i64 {k}, 0")
        is_last = f.let(f"icmp sge i64 {after}, {depth}")
        of_first = f.let(f"select i1 {is_first}, i64 {flags}, i64 {ACCUMULATE}")
        of_last = f.let(f"select i1 {is_last}, i64 {flags}, i64 0")
        accumulate = f.let(f"and i64 {of_first}, {ACCUMULATE}")
        add_bias = f.let(f"and i64 {of_last}, {ADD_BIAS}")
        rest = f.let(f"sub i64 {depth}, {k}")
        yield k, minimum(f, rest, str(steps)), f.let(f"or i64 {accumulate}, {add_bias}")


def load_word(f: FunctionBuilder, name: str) -> str:
    """Load a word of the context."""
    slot = f.let(f"getelementptr i64, ptr %context, i64 {CONTEXT_WORDS.index(name)}")
    pointers = ("a", "b", "c", "bias", "pack_a", "pack_b", "microkernel", "workspace")
    return f.let(f"load {'ptr' if name in pointers else 'i64'}, ptr {slot}")


def strided_pointer(f: FunctionBuilder, base: str, steps: list[tuple[str, str]]) -> str:
    """Return the address after (count, stride) steps."""
    for count, stride in steps:
        offset = f.let(f"mul i64 {count}, {stride}")
        base = f.let(f"getelementptr float, ptr {base}, i64 {offset}")
    return base


def minimum(f: FunctionBuilder, x: str, y: str) -> str:
    return f.call("@llvm.smin.i64", "i64", ("i64", x), ("i64", y))


def _entry_text() -> str:
    """Return the entry, which runs all tasks on one thread or in a parallel region."""
    return f"""
define i32 @kernel(ptr %context) nounwind {{
entry:
  %slot = getelementptr i64, ptr %context, i64 {CONTEXT_WORDS.index("threads")}
  %threads = load i64, ptr %slot
  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %one, label %many
one:
  call void @task(ptr %context, i64 0, i64 1)
  ret i32 0
many:
  %few = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @worker, ptr %context, i32 %few, i32 0)
  ret i32 0
}}
"""


DECLARATIONS = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""

WORKER_TEXT = """
define internal void @worker(ptr %context) nounwind {
entry:
  %number = call i32 @omp_get_thread_num()
  %count = call i32 @omp_get_num_threads()
  %first = sext i32 %number to i64
  %step = sext i32 %count to i64
  call void @task(ptr %context, i64 %first, i64 %step)
  ret void
}
"""
