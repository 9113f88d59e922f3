"""Products of few rows: every row of B^T, contiguous along the sum, is read once and not packed.

A library packs B for each call, or reads it once for every few rows of A. With few rows that takes
longer than the arithmetic, because B is large. Here a step of the loop multiplies a vector of each
of some rows of A with one of each of some rows of B^T. Their sums are added up across lanes after
`DIRECT_DEPTH` steps along the sum.
"""

from __future__ import annotations

import functools

from tofuse.backends.cpu.llvm.ir_text import ALIGNED_STACK, FunctionBuilder
from tofuse.backends.cpu.llvm.matmul.gemm_context import (
    CONTEXT_WORDS,
    load_word,
    loops_text,
    minimum,
    step_flags,
    strided_pointer,
)
from tofuse.backends.cpu.llvm.matmul.masked_vectors import (
    FLOAT_TY,
    LANES,
    element_pointer,
    lanes_below,
    load,
    module_text,
)
from tofuse.backends.cpu.llvm.matmul.microkernel import ACCUMULATE, ADD_BIAS, FMA
from tofuse.cost.thresholds import DIRECT_COLUMNS, DIRECT_DEPTH, DIRECT_ROWS

REGISTERS = 30  # of 32, for sums and vectors of B; one holds a vector of A, one the mask


def row_group(rows: int) -> int:
    """Return the number of rows of A in each of equal groups."""
    groups = -(-rows // DIRECT_ROWS)
    return -(-rows // groups)


def column_group(rows: int) -> int:
    """Return how many rows of B^T the kernel of so many rows of A takes."""
    return min(DIRECT_COLUMNS, REGISTERS // (rows + 1))


@functools.cache
def few_rows_loops_text(rows: int) -> str:
    """Return the text of the loops over a product, in groups of so many rows of A."""
    return loops_text(_task_text(rows))


def _task_text(rows: int) -> str:
    """Return the function of one thread's tasks: every `step`-th one, starting with `first`."""
    f = FunctionBuilder()
    words = {name: load_word(f, name) for name in CONTEXT_WORDS}
    columns = column_group(rows)
    with f.loop("%first", words["tasks"], "%step") as task:
        batch = f.let(f"sdiv i64 {task}, {words['tasks_per_product']}")
        tile = f.let(f"srem i64 {task}, {words['tasks_per_product']}")
        n0 = f.let(f"mul i64 {tile}, {words['n_step']}")
        n1 = minimum(f, words["n"], f.let(f"add i64 {n0}, {words['n_step']}"))
        base = {
            x: strided_pointer(f, words[x], [(batch, words[f"{x}_batch"])])
            for x in ("a", "b", "c", "bias")
        }
        # an empty sum gives zeros: one iteration with depth 0
        depth_end = f.call("@llvm.smax.i64", "i64", ("i64", words["k"]), ("i64", "1"))
        with f.loop(n0, n1, str(columns)) as n, f.loop("0", words["depths"], "1") as product:
            width = f.let(f"sub i64 {n1}, {n}")
            with f.loop("0", depth_end, str(DIRECT_DEPTH)) as k:
                depth = minimum(f, str(DIRECT_DEPTH), f.let(f"sub i64 {words['k']}, {k}"))
                flags = step_flags(f, words, product, k, DIRECT_DEPTH)
                steps = [(k, "1"), (product, words["b_depths"])]
                b = strided_pointer(f, base["b"], [(n, words["b_line"]), *steps])
                with f.loop("0", words["m"], str(rows)) as m:
                    steps = [(k, "1"), (product, words["a_depths"])]
                    a = strided_pointer(f, base["a"], [(m, words["a_line"]), *steps])
                    c = strided_pointer(f, base["c"], [(m, words["c_stride"]), (n, "1")])
                    bias_steps = [(m, words["bias_stride"]), (n, words["bias_column"])]
                    bias = strided_pointer(f, base["bias"], bias_steps)
                    height = f.let(f"sub i64 {words['m']}, {m}")
                    f.put(
                        f"call void {words['microkernel']}(ptr {a}, i64 {words['a_line']}, "
                        f"ptr {b}, i64 {words['b_line']}, i64 {depth}, ptr {c}, "
                        f"i64 {words['c_stride']}, i64 {height}, i64 {width}, i64 {flags}, "
                        f"ptr {bias}, i64 {words['bias_stride']}, i64 {words['bias_column']})"
                    )
    head = "define internal void @task(ptr %context, i64 %first, i64 %step) nounwind"
    return module_text(f, head)


@functools.cache
def few_rows_kernel_text(rows: int) -> str:
    """Return the text of `void @micro`, whose parameters are named in the text.

    C[r, j] = sum over k of a[r, k] * b[j, k], plus C and plus the bias if the flags in `bits` say
    so. `rows` and `columns` are those inside of C, at least one each. Strides are in elements; the
    last two are the bias's, of rows and of columns.
    """
    f, columns = FunctionBuilder(), column_group(rows)
    a = [_line(f, "%a", "%a.line", r, "%rows") for r in range(rows)]
    b = [_line(f, "%b", "%b.line", j, "%columns") for j in range(columns)]
    sums = _multiply(f, a, b)
    accumulate = f.let(f"icmp ne i64 {f.let(f'and i64 %bits, {ACCUMULATE}')}, 0")
    add_bias = f.let(f"icmp ne i64 {f.let(f'and i64 %bits, {ADD_BIAS}')}, 0")
    for r in range(rows):
        with f.if_then(f.let(f"icmp slt i64 {r}, %rows")):
            row = element_pointer(f, "%c", f.let(f"mul i64 %stride, {r}"))
            first = element_pointer(f, "%bias", f.let(f"mul i64 %bias.stride, {r}"))
            for j in range(columns):
                with f.if_then(f.let(f"icmp slt i64 {j}, %columns")):
                    place = element_pointer(f, row, str(j))
                    offset = f.let(f"mul i64 %bias.column, {j}")
                    x = _add(f, sums[r, j], accumulate, place)
                    x = _add(f, x, add_bias, element_pointer(f, first, offset))
                    f.put(f"store float {x}, ptr {place}, align 4")
    head = (
        "define void @micro(ptr %a, i64 %a.line, ptr %b, i64 %b.line, i64 %depth, ptr %c, "
        "i64 %stride, i64 %rows, i64 %columns, i64 %bits, ptr %bias, i64 %bias.stride, "
        f"i64 %bias.column) nounwind {ALIGNED_STACK}"
    )
    return module_text(f, head)


def _line(f: FunctionBuilder, base: str, stride: str, number: str | int, count: str) -> str:
    """Return the address of a line of an operand; of the last one for those outside."""
    last = f.let(f"sub i64 {count}, 1")
    inside = f.call("@llvm.smin.i64", "i64", ("i64", str(number)), ("i64", last))
    return element_pointer(f, base, f.let(f"mul i64 {stride}, {inside}"))


def _multiply(f: FunctionBuilder, a: list[str], b: list[str]) -> dict[tuple[int, int], str]:
    """Emit the loop along the sum; return the sums across lanes."""
    f.declarations[FMA] = f"declare {FLOAT_TY} {FMA}({', '.join([FLOAT_TY] * 3)})"
    reduce = f"@llvm.vector.reduce.fadd.v{LANES}f32"
    f.declarations[reduce] = f"declare float {reduce}(float, {FLOAT_TY})"
    tiles = [(r, j) for r in range(len(a)) for j in range(len(b))]
    whole = f.let(f"and i64 %depth, {-LANES}")
    f.put("br label %enter")
    f.start_block("enter")
    f.put("br label %turn")
    f.start_block("turn")
    f.put("%k = phi i64 [ 0, %enter ], [ %k.next, %work ]")
    for r, j in tiles:
        f.put(f"%s{r}.{j} = phi {FLOAT_TY} [ zeroinitializer, %enter ], [ %n{r}.{j}, %work ]")
    f.put(f"%more = icmp slt i64 %k, {whole}")
    f.put("br i1 %more, label %work, label %rest")
    f.start_block("work")
    _step(f, a, b, None, "n")
    f.put(f"%k.next = add i64 %k, {LANES}")
    f.put("br label %turn")
    f.start_block("rest")
    f.put("%some = icmp slt i64 %k, %depth")
    f.put("br i1 %some, label %tail, label %done")
    f.start_block("tail")
    _step(f, a, b, lanes_below(f, f.let("sub i64 %depth, %k"), 0), "t")
    f.put("br label %done")
    f.start_block("done")
    for r, j in tiles:
        f.put(f"%d{r}.{j} = phi {FLOAT_TY} [ %s{r}.{j}, %rest ], [ %t{r}.{j}, %tail ]")
    return {
        (r, j): f.let(f"call reassoc float {reduce}(float 0.0, {FLOAT_TY} %d{r}.{j})")
        for r, j in tiles
    }


def _step(f: FunctionBuilder, a: list[str], b: list[str], mask: str | None, name: str) -> None:
    """Emit the products of a vector of each line, added to the sums."""
    of_b = [_load(f, line, mask) for line in b]
    for r, line in enumerate(a):
        of_a = _load(f, line, mask)
        for j, vector in enumerate(of_b):
            operands = ", ".join(f"{FLOAT_TY} {x}" for x in (of_a, vector, f"%s{r}.{j}"))
            f.put(f"%{name}{r}.{j} = call {FLOAT_TY} {FMA}({operands})")


def _load(f: FunctionBuilder, line: str, mask: str | None) -> str:
    place = element_pointer(f, line, "%k")
    return f.let(f"load {FLOAT_TY}, ptr {place}, align 4") if mask is None else load(f, place, mask)


def _add(f: FunctionBuilder, x: str, condition: str, pointer: str) -> str:
    """Return x plus the number at an address, which is mapped, if the condition holds."""
    y = f.let(f"load float, ptr {pointer}, align 4")
    z = f.let(f"fadd float {x}, {y}")
    return f.let(f"select i1 {condition}, float {z}, float {x}")
