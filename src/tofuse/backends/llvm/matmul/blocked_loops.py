"""The loops around the kernel: tasks for threads, panels of B, the depth, blocks of A, slabs."""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import Function
from tofuse.backends.llvm.matmul.microkernel import ADDED, BIASED
from tofuse.backends.llvm.matmul.pack import DEPTH, WIDTH

SLABS = 16  # of A in a block: with the slab of B that is in use, half of a core's L2 cache
COLUMNS = 512  # of B in a panel

WORDS = (
    *("a", "b", "c", "bias"),
    *("pack_a", "pack_b", "micro"),
    *("m", "n", "k"),
    *("a_batch", "a_line", "a_depth", "a_stride"),
    *("b_batch", "b_line", "b_depth", "b_stride"),
    *("c_batch", "c_stride"),
    *("bias_batch", "bias_stride", "bias_column", "biased"),
    *("depths", "a_depths", "b_depths"),
    *("tasks", "across", "tasks_each", "m_step", "n_step"),
    *("rows", "slab", "space", "space_each", "threads"),
)
"""The context's 64-bit words, in order. Strides are in elements, slabs and space in bytes.

A task is a part of one product: `tasks_each` tasks a product of the batch, `across` of them side by
side, each `m_step` by `n_step`.
"""


def driver_text() -> str:
    """`i32 @kernel(ptr context)`: the product, shared out among threads."""
    return "\n".join([EXTERNAL, _task_text(), WORKER, _entry_text()])


EXTERNAL = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""


def _task_text() -> str:
    """One thread's tasks: every `step`-th from `first` on."""
    f = Function()
    w = {name: _word(f, name) for name in WORDS}
    offset = f.let(f"mul i64 %first, {w['space_each']}")
    space_a = f.let(f"getelementptr i8, ptr {w['space']}, i64 {offset}")
    size_a = f.let(f"mul i64 {w['slab']}, {SLABS}")
    space_b = f.let(f"getelementptr i8, ptr {space_a}, i64 {size_a}")
    block = f.let(f"mul i64 {w['rows']}, {SLABS}")
    with f.loop("%first", w["tasks"], "%step") as task:
        batch = f.let(f"sdiv i64 {task}, {w['tasks_each']}")
        place = f.let(f"srem i64 {task}, {w['tasks_each']}")
        down = f.let(f"sdiv i64 {place}, {w['across']}")
        right = f.let(f"srem i64 {place}, {w['across']}")
        m0 = f.let(f"mul i64 {down}, {w['m_step']}")
        n0 = f.let(f"mul i64 {right}, {w['n_step']}")
        m1 = _least(f, w["m"], f.let(f"add i64 {m0}, {w['m_step']}"))
        n1 = _least(f, w["n"], f.let(f"add i64 {n0}, {w['n_step']}"))
        at = {x: _at(f, w[x], [(batch, w[f"{x}_batch"])]) for x in ("a", "b", "c", "bias")}
        with f.loop(n0, n1, str(COLUMNS)) as n, f.loop("0", w["depths"], "1") as part:
            columns = _least(f, str(COLUMNS), f.let(f"sub i64 {n1}, {n}"))
            # a product over nothing is zeros: one round of depth 0
            deep = f.let(f"call i64 @llvm.smax.i64(i64 {w['k']}, i64 1)")
            with f.loop("0", deep, str(DEPTH)) as k:
                depth = _least(f, str(DEPTH), f.let(f"sub i64 {w['k']}, {k}"))
                steps = [(n, w["b_line"]), (k, w["b_depth"]), (part, w["b_depths"])]
                source = _at(f, at["b"], steps)
                _pack(f, w["pack_b"], source, w["b_stride"], columns, depth, space_b)
                bits = _bits(f, w, part, k)
                with f.loop(m0, m1, block) as m:
                    rows = _least(f, block, f.let(f"sub i64 {m1}, {m}"))
                    steps = [(m, w["a_line"]), (k, w["a_depth"]), (part, w["a_depths"])]
                    source = _at(f, at["a"], steps)
                    _pack(f, w["pack_a"], source, w["a_stride"], rows, depth, space_a)
                    _multiply(f, w, at, (space_a, space_b), (m, n), (rows, columns), depth, bits)
    return "declare i64 @llvm.smin.i64(i64, i64)\ndeclare i64 @llvm.smax.i64(i64, i64)\n" + f.text(
        "define internal void @task(ptr %context, i64 %first, i64 %step) nounwind"
    )


def _multiply(
    f: Function,
    w: dict[str, str],
    at: dict[str, str],
    spaces: tuple[str, str],
    corner: tuple[str, str],
    sizes: tuple[str, str],
    depth: str,
    bits: str,
) -> None:
    """Every slab of a block of A with every slab of a panel of B."""
    (space_a, space_b), (m, n), (rows, columns) = spaces, corner, sizes
    with f.loop("0", columns, str(WIDTH)) as j:
        b = f.let(f"getelementptr float, ptr {space_b}, i64 {f.let(f'mul i64 {j}, {DEPTH}')}")
        width = f.let(f"sub i64 {columns}, {j}")
        column = f.let(f"add i64 {n}, {j}")
        with f.loop("0", rows, w["rows"]) as i:
            number = f.let(f"sdiv i64 {i}, {w['rows']}")
            slab = f.let(f"mul i64 {number}, {w['slab']}")
            a = f.let(f"getelementptr i8, ptr {space_a}, i64 {slab}")
            row = f.let(f"add i64 {m}, {i}")
            c = _at(f, at["c"], [(row, w["c_stride"]), (column, "1")])
            bias = _at(f, at["bias"], [(row, w["bias_stride"]), (column, w["bias_column"])])
            height = f.let(f"sub i64 {rows}, {i}")
            words = [depth, w["c_stride"], height, width, bits, w["bias_stride"]]
            d, stride, height, width_, bits_, bias_stride = (f"i64 {x}" for x in words)
            f.put(
                f"call void {w['micro']}(ptr {a}, ptr {b}, {d}, ptr {c}, {stride}, {height}, "
                f"{width_}, {bits_}, ptr {bias}, {bias_stride})"
            )


def _pack(
    f: Function, pack: str, source: str, stride: str, lines: str, depth: str, to: str
) -> None:
    f.put(f"call void {pack}(ptr {source}, i64 {stride}, i64 {lines}, i64 {depth}, ptr {to})")


def _bits(f: Function, w: dict[str, str], part: str, k: str) -> str:
    """What the kernel adds in this round: what is there after the first, the bias in the last."""
    later = f.let(f"icmp ne i64 {f.let(f'or i64 {part}, {k}')}, 0")
    deepest = f.let(f"icmp sge i64 {f.let(f'add i64 {k}, {DEPTH}')}, {w['k']}")
    ending = f.let(f"icmp eq i64 {f.let(f'add i64 {part}, 1')}, {w['depths']}")
    last = f.let(f"and i1 {deepest}, {ending}")
    added = f.let(f"select i1 {later}, i64 {ADDED}, i64 0")
    with_bias = f.let(f"select i1 {last}, i64 {w['biased']}, i64 0")
    return f.let(f"or i64 {added}, {f.let(f'mul i64 {with_bias}, {BIASED}')}")


def _word(f: Function, name: str) -> str:
    slot = f.let(f"getelementptr i64, ptr %context, i64 {WORDS.index(name)}")
    pointers = ("a", "b", "c", "bias", "pack_a", "pack_b", "micro", "space")
    return f.let(f"load {'ptr' if name in pointers else 'i64'}, ptr {slot}")


def _at(f: Function, base: str, steps: list[tuple[str, str]]) -> str:
    for count, stride in steps:
        by = f.let(f"mul i64 {count}, {stride}")
        base = f.let(f"getelementptr float, ptr {base}, i64 {by}")
    return base


def _least(f: Function, x: str, y: str) -> str:
    return f.let(f"call i64 @llvm.smin.i64(i64 {x}, i64 {y})")


WORKER = """
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
    return f"""
define i32 @kernel(ptr %context) nounwind {{
entry:
  %slot = getelementptr i64, ptr %context, i64 {WORDS.index("threads")}
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
