"""The innermost loop: rows by two vectors of C in registers, a column of A and row of B a turn."""

from __future__ import annotations

from tofuse.backends.llvm.ir_text import VECTORS_ON_STACK, Function
from tofuse.backends.llvm.matmul.masked_vectors import (
    FLOATS,
    LANES,
    MASK,
    below,
    element,
    load,
    module,
    only_if,
    spread,
    store,
)
from tofuse.backends.llvm.matmul.pack import WIDTH, slab_strides

ADDED, BIASED = 1, 2  # bits of what the kernel is told: C holds a sum already; the bias comes too


def micro_text(rows: int, turned: bool, by_row: bool = False) -> str:
    """`void @micro(a, b, depth, c, stride, rows, columns, bits, bias, bias stride)`.

    C[r, :] = sum over k of a[r, k] * b[k, :], plus what C holds and plus the bias where the bits
    say so. Strides are in elements. `turned` is how A was packed (`slab_strides`); a bias `by_row`
    has one number for each row.
    """
    return _Micro(rows, turned, by_row).text()


class _Micro:
    def __init__(self, rows: int, turned: bool, by_row: bool) -> None:
        self.rows, self.by_row = rows, by_row
        self.per_row, self.per_turn = slab_strides(turned)
        self.f = Function()
        self.vectors = range(WIDTH // LANES)

    def text(self) -> str:
        self._fetch()
        sums = self._multiply()
        self._store(sums)
        head = (
            "define void @micro(ptr %a, ptr %b, i64 %depth, ptr %c, i64 %stride, i64 %rows, "
            f"i64 %columns, i64 %bits, ptr %bias, i64 %bias.stride) nounwind {VECTORS_ON_STACK}"
        )
        return module(self.f, head)

    def _fetch(self) -> None:
        """Ask for the lines of C, which are written when the sums are done."""
        f = self.f
        f.declared["prefetch"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        for r in range(self.rows):
            at = f.let(f"mul i64 %stride, {r}")
            for v in self.vectors:
                c = element(f, "%c", f.let(f"add i64 {at}, {v * LANES}"))
                f.put(f"call void @llvm.prefetch.p0(ptr {c}, i32 1, i32 3, i32 1)")

    def _multiply(self) -> dict[tuple[int, int], str]:
        """The loop over the depth, every sum in a register of its own."""
        f = self.f
        tiles = [(r, v) for r in range(self.rows) for v in self.vectors]
        f.put("br label %turn")
        f.start_block("turn")
        f.put("%k = phi i64 [ 0, %start ], [ %k.next, %work ]")
        for r, v in tiles:
            f.put(f"%s{r}.{v} = phi {FLOATS} [ zeroinitializer, %start ], [ %n{r}.{v}, %work ]")
        f.put("%more = icmp slt i64 %k, %depth")
        f.put("br i1 %more, label %work, label %done")
        f.start_block("work")
        row = f.let(f"mul i64 %k, {WIDTH}")
        b = [self._load("%b", f.let(f"add i64 {row}, {v * LANES}")) for v in self.vectors]
        turn = f.let(f"mul i64 %k, {self.per_turn}")
        for r in range(self.rows):
            at = f.let(f"add i64 {turn}, {r * self.per_row}")
            one = f.let(f"load float, ptr {element(f, '%a', at)}, align 4")
            a = self._spread(one)
            for v in self.vectors:
                fma = self._intrinsic("fma", a, b[v], f"%s{r}.{v}")
                f.put(f"%n{r}.{v} = {fma}")
        f.put("%k.next = add i64 %k, 1")
        f.put("br label %turn")
        f.start_block("done")
        return {(r, v): f"%s{r}.{v}" for r, v in tiles}

    def _store(self, sums: dict[tuple[int, int], str]) -> None:
        """Write what lies inside C, row by row."""
        f = self.f
        masks = [below(f, "%columns", v * LANES) for v in self.vectors]
        added = f.let(f"icmp ne i64 {f.let(f'and i64 %bits, {ADDED}')}, 0")
        biased = f.let(f"icmp ne i64 {f.let(f'and i64 %bits, {BIASED}')}, 0")
        old = [only_if(f, added, m) for m in masks]
        given = [only_if(f, biased, m) for m in masks]
        for r in range(self.rows):
            inside = f.let(f"icmp slt i64 {r}, %rows")
            with f.when(inside):
                at = f.let(f"mul i64 %stride, {r}")
                first = element(f, "%bias", f.let(f"mul i64 %bias.stride, {r}"))
                for v in self.vectors:
                    c = element(f, "%c", f.let(f"add i64 {at}, {v * LANES}"))
                    x = f.let(f"fadd {FLOATS} {sums[r, v]}, {load(f, c, old[v])}")
                    x = f.let(f"fadd {FLOATS} {x}, {self._bias(first, v, given[v])}")
                    store(f, x, c, masks[v])

    def _bias(self, first: str, vector: int, given: str) -> str:
        """What is added to a vector of a row; zeros where nothing is."""
        f = self.f
        if not self.by_row:
            return load(f, element(f, first, str(vector * LANES)), given)
        x = self._spread(f.let(f"load float, ptr {first}, align 4"))
        return f.let(f"select {MASK} {given}, {FLOATS} {x}, {FLOATS} zeroinitializer")

    def _spread(self, x: str) -> str:
        """A number in all lanes."""
        return spread(
            self.f, FLOATS, self.f.let(f"insertelement {FLOATS} poison, float {x}, i64 0")
        )

    def _intrinsic(self, name: str, *operands: str) -> str:
        symbol = f"@llvm.{name}.v{LANES}f32"
        kinds = ", ".join([FLOATS] * len(operands))
        self.f.declared[symbol] = f"declare {FLOATS} {symbol}({kinds})"
        return f"call {FLOATS} {symbol}({', '.join(f'{FLOATS} {x}' for x in operands)})"

    def _load(self, base: str, index: str) -> str:
        return self.f.let(f"load {FLOATS}, ptr {element(self.f, base, index)}, align 4")
