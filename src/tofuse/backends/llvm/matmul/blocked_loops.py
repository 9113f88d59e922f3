"""LLVM IR of the blocked loops: tasks for threads, panels of B, blocks of depth, blocks of A."""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import FunctionBuilder
from tofuse.backends.llvm.matmul.masked_vectors import module_text
from tofuse.backends.llvm.matmul.microkernel import ACCUMULATE, ADD_BIAS
from tofuse.backends.llvm.matmul.pack import WIDTH
from tofuse.cost.thresholds import BLOCK_MICROPANELS, PANEL_COLUMNS, PANEL_DEPTH

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
    *("rows", "micropanel", "workspace", "workspace_per_thread", "threads"),
)
"""The context's 64-bit words, in order. Strides are in elements, sizes of memory in bytes.

A task is a tile of `m_step` by `n_step` of one product of the batch. A product has
`tasks_per_product` tasks, `across` of them in a row. Each result is the sum of `depths` products;
`a_depths` and `b_depths` are the strides between their operands.
"""


def blocked_loops_text() -> str:
    """Return the text of `i32 @kernel(ptr context)`, which divides the product among threads."""
    return "\n".join([DECLARATIONS, _task_text(), WORKER_TEXT, _entry_text()])


DECLARATIONS = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""


def _task_text() -> str:
    """Return the function of one thread's tasks: every `step`-th one, starting with `first`."""
    f = FunctionBuilder()
    words = {name: _load_word(f, name) for name in CONTEXT_WORDS}
    offset = f.let(f"mul i64 %first, {words['workspace_per_thread']}")
    packed_a = f.let(f"getelementptr i8, ptr {words['workspace']}, i64 {offset}")
    bytes_a = f.let(f"mul i64 {words['micropanel']}, {BLOCK_MICROPANELS}")
    packed_b = f.let(f"getelementptr i8, ptr {packed_a}, i64 {bytes_a}")
    block = f.let(f"mul i64 {words['rows']}, {BLOCK_MICROPANELS}")
    with f.loop("%first", words["tasks"], "%step") as task:
        batch = f.let(f"sdiv i64 {task}, {words['tasks_per_product']}")
        tile = f.let(f"srem i64 {task}, {words['tasks_per_product']}")
        tile_row = f.let(f"sdiv i64 {tile}, {words['across']}")
        tile_column = f.let(f"srem i64 {tile}, {words['across']}")
        m0 = f.let(f"mul i64 {tile_row}, {words['m_step']}")
        n0 = f.let(f"mul i64 {tile_column}, {words['n_step']}")
        m1 = _min(f, words["m"], f.let(f"add i64 {m0}, {words['m_step']}"))
        n1 = _min(f, words["n"], f.let(f"add i64 {n0}, {words['n_step']}"))
        base = {
            x: _element_pointer(f, words[x], [(batch, words[f"{x}_batch"])])
            for x in ("a", "b", "c", "bias")
        }
        with f.loop(n0, n1, str(PANEL_COLUMNS)) as n, f.loop("0", words["depths"], "1") as product:
            columns = _min(f, str(PANEL_COLUMNS), f.let(f"sub i64 {n1}, {n}"))
            # an empty sum gives zeros: one iteration with depth 0
            depth_end = f.call("@llvm.smax.i64", "i64", ("i64", words["k"]), ("i64", "1"))
            with f.loop("0", depth_end, str(PANEL_DEPTH)) as k:
                depth = _min(f, str(PANEL_DEPTH), f.let(f"sub i64 {words['k']}, {k}"))
                _pack(f, words, base, "b", (n, k, product), columns, depth, packed_b)
                flags = _flags(f, words, product, k)
                with f.loop(m0, m1, block) as m:
                    rows = _min(f, block, f.let(f"sub i64 {m1}, {m}"))
                    _pack(f, words, base, "a", (m, k, product), rows, depth, packed_a)
                    _multiply_block(
                        f, words, base, (packed_a, packed_b), (m, n), (rows, columns), depth, flags
                    )
    head = "define internal void @task(ptr %context, i64 %first, i64 %step) nounwind"
    return module_text(f, head)


def _multiply_block(
    f: FunctionBuilder,
    words: dict[str, str],
    base: dict[str, str],
    packed: tuple[str, str],
    corner: tuple[str, str],
    sizes: tuple[str, str],
    depth: str,
    flags: str,
) -> None:
    """Multiply every micropanel of a block of A with every micropanel of a panel of B."""
    (packed_a, packed_b), (m, n), (rows, columns) = packed, corner, sizes
    with f.loop("0", columns, str(WIDTH)) as j:
        b = f.let(
            f"getelementptr float, ptr {packed_b}, i64 {f.let(f'mul i64 {j}, {PANEL_DEPTH}')}"
        )
        width = f.let(f"sub i64 {columns}, {j}")
        column = f.let(f"add i64 {n}, {j}")
        with f.loop("0", rows, words["rows"]) as i:
            index = f.let(f"sdiv i64 {i}, {words['rows']}")
            micropanel = f.let(f"mul i64 {index}, {words['micropanel']}")
            a = f.let(f"getelementptr i8, ptr {packed_a}, i64 {micropanel}")
            row = f.let(f"add i64 {m}, {i}")
            c = _element_pointer(f, base["c"], [(row, words["c_stride"]), (column, "1")])
            bias = _element_pointer(
                f, base["bias"], [(row, words["bias_stride"]), (column, words["bias_column"])]
            )
            height = f.let(f"sub i64 {rows}, {i}")
            sums = f"ptr {a}, ptr {b}, i64 {depth}"
            result = f"ptr {c}, i64 {words['c_stride']}, i64 {height}, i64 {width}"
            added = f"i64 {flags}, ptr {bias}, i64 {words['bias_stride']}"
            f.put(f"call void {words['microkernel']}({sums}, {result}, {added})")


def _pack(
    f: FunctionBuilder,
    words: dict[str, str],
    base: dict[str, str],
    x: str,
    start: tuple[str, str, str],
    lines: str,
    depth: str,
    to: str,
) -> None:
    """Pack the block of operand `x` that starts at a line, a step of depth, and a product."""
    strides = (words[f"{x}_{step}"] for step in ("line", "depth", "depths"))
    source = _element_pointer(f, base[x], list(zip(start, strides, strict=True)))
    block = f"ptr {source}, i64 {words[f'{x}_stride']}, i64 {lines}, i64 {depth}"
    f.put(f"call void {words[f'pack_{x}']}({block}, ptr {to})")


def _flags(f: FunctionBuilder, words: dict[str, str], product: str, k: str) -> str:
    """Return the flags: accumulate after the first step, add the bias in the last."""
    not_first = f.let(f"icmp ne i64 {f.let(f'or i64 {product}, {k}')}, 0")
    ends_depth = f.let(f"icmp sge i64 {f.let(f'add i64 {k}, {PANEL_DEPTH}')}, {words['k']}")
    ends_products = f.let(f"icmp eq i64 {f.let(f'add i64 {product}, 1')}, {words['depths']}")
    last = f.let(f"and i1 {ends_depth}, {ends_products}")
    accumulate = f.let(f"select i1 {not_first}, i64 {ACCUMULATE}, i64 0")
    has_bias = f.let(f"select i1 {last}, i64 {words['has_bias']}, i64 0")
    return f.let(f"or i64 {accumulate}, {f.let(f'mul i64 {has_bias}, {ADD_BIAS}')}")


def _load_word(f: FunctionBuilder, name: str) -> str:
    """Load a word of the context."""
    slot = f.let(f"getelementptr i64, ptr %context, i64 {CONTEXT_WORDS.index(name)}")
    pointers = ("a", "b", "c", "bias", "pack_a", "pack_b", "microkernel", "workspace")
    return f.let(f"load {'ptr' if name in pointers else 'i64'}, ptr {slot}")


def _element_pointer(f: FunctionBuilder, base: str, steps: list[tuple[str, str]]) -> str:
    """Return the address after (count, stride) steps."""
    for count, stride in steps:
        offset = f.let(f"mul i64 {count}, {stride}")
        base = f.let(f"getelementptr float, ptr {base}, i64 {offset}")
    return base


def _min(f: FunctionBuilder, x: str, y: str) -> str:
    return f.call("@llvm.smin.i64", "i64", ("i64", x), ("i64", y))


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
