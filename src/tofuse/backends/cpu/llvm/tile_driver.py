"""LLVM IR of the function that runs tiles of rows, a task of the parallel driver.

The number of the task is that of a chunk of tiles. A tile runs parts of several kernels in order,
in memory of its thread. The context has five words: the address of the chunks, that of the tiles,
the address of the first thread's area, the bytes of an area, the number of threads. The first word
of an area is the address of the scratch.

- A chunk has two words: its first tile, and the first one after it.
- A tile has six words: the addresses and numbers of its moves, its copies and its parts.
- A move has three words: the byte offsets in the area of a target and of a source, and a number.
  The target becomes the source plus the number.
- A copy has three words: the byte offsets in the scratch of a target and of a source behind it, and
  the number of cache lines.
- A part has five words: a kernel's function, the byte offset of its context in the area, the first
  iteration, the first one after it, and the number of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tofuse.backends.cpu.llvm.entry import context_word
from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder
from tofuse.cost.machine import CACHE_LINE

CHUNK_WORDS, TILE_WORDS, MOVE_WORDS, COPY_WORDS, PART_WORDS = 2, 6, 3, 3, 5
LINE = f"<{CACHE_LINE} x i8>"


def tile_function(name: str) -> str:
    """Return the definition of the function; what it calls is declared elsewhere."""
    f = FunctionBuilder()
    chunks, tiles, areas = (context_word(f, k, "ptr") for k in range(3))
    area_bytes, threads = (context_word(f, k) for k in (3, 4))
    is_single = f.let(f"icmp eq i64 {threads}, 1")
    number = f.let(f"sext i32 {f.call('@omp_get_thread_num', 'i32')} to i64")
    thread = f.let(f"select i1 {is_single}, i64 0, i64 {number}")
    area = _at(f, areas, f.let(f"mul i64 {thread}, {area_bytes}"))
    scratch = _word(f, area, 0, "ptr")
    chunk = _row(f, chunks, "%first", CHUNK_WORDS)
    with f.loop(_word(f, chunk, 0), _word(f, chunk, 1), "1") as tile_number:
        tile = _row(f, tiles, tile_number, TILE_WORDS)
        with _rows(f, tile, 0, MOVE_WORDS) as move:
            target, source = (_at(f, area, _word(f, move, k)) for k in (0, 1))
            moved = f.let(f"add i64 {_word(f, source, 0)}, {_word(f, move, 2)}")
            f.put(f"store i64 {moved}, ptr {target}")
        with _rows(f, tile, 2, COPY_WORDS) as copy:
            target, source = (_at(f, scratch, _word(f, copy, k)) for k in (0, 1))
            with f.loop("0", _word(f, copy, 2), "1") as line:
                offset = f.let(f"mul i64 {line}, {CACHE_LINE}")
                value = f.let(f"load {LINE}, ptr {_at(f, source, offset)}, align 1")
                f.put(f"store {LINE} {value}, ptr {_at(f, target, offset)}, align 1")
        with _rows(f, tile, 4, PART_WORDS) as part:
            context = _at(f, area, _word(f, part, 1))
            numbers = ", ".join(
                f"i64 {n}" for n in (thread, *(_word(f, part, k) for k in (2, 3, 4)))
            )
            f.put(f"call void {_word(f, part, 0, 'ptr')}(ptr {context}, {numbers})")
    head = f"define void @{name}(ptr %context, i64 %thread, i64 %first, i64 %end, i64 %whole)"
    return f.text(f"{head} nounwind")


@contextmanager
def _rows(f: FunctionBuilder, tile: str, k: int, words: int) -> Iterator[str]:
    """Emit a loop over the rows of a table, whose address is word `k` of a tile; yield a row."""
    table = _word(f, tile, k, "ptr")
    with f.loop("0", _word(f, tile, k + 1), "1") as number:
        yield _row(f, table, number, words)


def _row(f: FunctionBuilder, table: str, number: str, words: int) -> str:
    """Return the address of a row of a table, whose rows have so many words."""
    offset = f.let(f"mul i64 {number}, {words}")
    return f.let(f"getelementptr i64, ptr {table}, i64 {offset}")


def _word(f: FunctionBuilder, row: str, k: int, ty: str = "i64") -> str:
    """Load word `k` of a row."""
    return f.let(f"load {ty}, ptr {f.let(f'getelementptr i64, ptr {row}, i64 {k}')}")


def _at(f: FunctionBuilder, base: str, nbytes: str) -> str:
    """Return the address so many bytes after another one."""
    return f.let(f"getelementptr i8, ptr {base}, i64 {nbytes}")
