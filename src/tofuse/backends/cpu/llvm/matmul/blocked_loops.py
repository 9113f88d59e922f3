"""LLVM IR of the blocked loops: tasks for threads, panels of B, blocks of depth, blocks of A."""

from __future__ import annotations

import functools

from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder
from tofuse.backends.cpu.llvm.matmul.gemm_context import (
    CONTEXT_WORDS,
    load_word,
    loops_text,
    minimum,
    partial_sums,
    step_flags,
    strided_pointer,
)
from tofuse.backends.cpu.llvm.matmul.masked_vectors import element_pointer, module_text
from tofuse.backends.cpu.llvm.matmul.pack import WIDTH
from tofuse.cost.thresholds import (
    BLOCK_MICROPANELS,
    PANEL_COLUMNS,
    PANEL_DEPTH,
    PARTIAL_PRODUCT_SUM_STEPS,
)


@functools.cache
def blocked_loops_text() -> str:
    """Return the text of the loops; `loops_text` says how it is called."""
    return loops_text(_task_text())


def _task_text() -> str:
    """Return the function of one thread's tasks: every `step`-th one, starting with `first`."""
    f = FunctionBuilder()
    words = {name: load_word(f, name) for name in CONTEXT_WORDS}
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
        m1 = minimum(f, words["m"], f.let(f"add i64 {m0}, {words['m_step']}"))
        n1 = minimum(f, words["n"], f.let(f"add i64 {n0}, {words['n_step']}"))
        base = {
            x: strided_pointer(f, words[x], [(batch, words[f"{x}_batch"])])
            for x in ("a", "b", "c", "bias")
        }
        with f.loop(n0, n1, str(PANEL_COLUMNS)) as n, f.loop("0", words["depths"], "1") as product:
            columns = minimum(f, str(PANEL_COLUMNS), f.let(f"sub i64 {n1}, {n}"))
            # an empty sum gives zeros: one iteration with depth 0
            depth_end = f.call("@llvm.smax.i64", "i64", ("i64", words["k"]), ("i64", "1"))
            with f.loop("0", depth_end, str(PANEL_DEPTH)) as k:
                depth = minimum(f, str(PANEL_DEPTH), f.let(f"sub i64 {words['k']}, {k}"))
                _pack(f, words, base, "b", (n, k, product), columns, depth, packed_b)
                flags = step_flags(f, words, product, k, PANEL_DEPTH)
                with f.loop(m0, m1, block) as m:
                    rows = minimum(f, block, f.let(f"sub i64 {m1}, {m}"))
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
            c = strided_pointer(f, base["c"], [(row, words["c_stride"]), (column, "1")])
            bias = strided_pointer(
                f, base["bias"], [(row, words["bias_stride"]), (column, words["bias_column"])]
            )
            height = f.let(f"sub i64 {rows}, {i}")
            result = f"ptr {c}, i64 {words['c_stride']}, i64 {height}, i64 {width}"
            with partial_sums(f, depth, flags, PARTIAL_PRODUCT_SUM_STEPS) as (k, count, part_flags):
                a_part = element_pointer(f, a, f.let(f"mul i64 {k}, {words['a_step']}"))
                b_part = element_pointer(f, b, f.let(f"mul i64 {k}, {WIDTH}"))
                sums = f"ptr {a_part}, ptr {b_part}, i64 {count}"
                added = f"i64 {part_flags}, ptr {bias}, i64 {words['bias_stride']}"
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
    source = strided_pointer(f, base[x], list(zip(start, strides, strict=True)))
    block = f"ptr {source}, i64 {words[f'{x}_stride']}, i64 {lines}, i64 {depth}"
    f.put(f"call void {words[f'pack_{x}']}({block}, ptr {to})")
