"""The microkernel: rows by one or two vectors of C in registers.

A step of the depth adds an outer product.
"""

from __future__ import annotations

import functools

from tofuse.backends.cpu.llvm.ir_text import ALIGNED_STACK, FunctionBuilder, splat
from tofuse.backends.cpu.llvm.matmul.masked_vectors import (
    FLOAT_TY,
    LANES,
    MASK_TY,
    element_pointer,
    function_text,
    lanes_below,
    load,
    mask_if,
    store,
)
from tofuse.backends.cpu.llvm.matmul.pack import WIDTH, micropanel_strides
from tofuse.cost.thresholds import PANEL_DEPTH
from tofuse.ir.types import DType

FMA = f"@llvm.fma.v{LANES}f32"
PAIRS_TY = f"<{2 * LANES} x bfloat>"
BF16_DOT = "@llvm.x86.avx512bf16.dpbf16ps.512"
ACCUMULATE, ADD_BIAS = 1, 2  # flags: C already holds a sum; the bias is added


@functools.cache
def microkernel_text(rows: int, depth_major: bool, by_row: bool = False) -> str:
    """Return the text of a module with the microkernel `@micro`."""
    declarations: dict[str, str] = {}
    text = microkernel_function("@micro", rows, depth_major, declarations, by_row=by_row)
    return "\n".join([*declarations.values(), text])


def microkernel_function(
    name: str,
    rows: int,
    depth_major: bool,
    declarations: dict[str, str],
    *,
    by_row: bool = False,
    fused: bool = True,
    dtype: DType = DType.F32,
    columns: int = WIDTH,
    is_whole: bool = False,
    panel_depth: int = PANEL_DEPTH,
) -> str:
    """Return `void name(a, b, depth, c, stride, rows, columns, bits, bias, bias stride)`.

    C[r, :] = sum over k of a[r, k] * b[k, :], plus C and plus the bias if the flags in `bits` say
    so. Strides are in elements. `depth_major` and `panel_depth` are the layout of packed A
    (`micropanel_strides`). A bias `by_row` has one number per row. Products of float32 are rounded
    before they are added, unless they are `fused` with the addition. Of bfloat16, a step of the
    depth is a pair of elements. Packed B has WIDTH elements for each step. The function multiplies
    the first `columns` of them. `is_whole`: C has all of these rows and columns, and there is no
    bias. What the function calls is added to `declarations`.
    """
    strides = micropanel_strides(depth_major, panel_depth)
    kernel = _Microkernel(rows, strides, by_row, fused, dtype, columns, is_whole)
    return function_text(kernel.emit(), microkernel_head(name), declarations)


def microkernel_head(name: str) -> str:
    """Return the signature of a microkernel."""
    return (
        f"define dso_local void {name}(ptr %a, ptr %b, i64 %depth, ptr %c, i64 %stride, i64 %rows, "
        f"i64 %columns, i64 %bits, ptr %bias, i64 %bias.stride) nounwind {ALIGNED_STACK}"
    )


class _Microkernel:
    def __init__(
        self,
        rows: int,
        strides: tuple[int, int],
        by_row: bool,
        fused: bool,
        dtype: DType,
        columns: int,
        is_whole: bool,
    ) -> None:
        self.rows, self.by_row, self.fused, self.dtype = rows, by_row, fused, dtype
        self.is_whole = is_whole
        self.row_stride, self.depth_stride = strides
        self.f = FunctionBuilder()
        self.vectors = range(columns // LANES)

    def emit(self) -> FunctionBuilder:
        self._prefetch_c()
        sums = self._multiply()
        if self.is_whole:
            self._store_whole(sums)
        else:
            self._store(sums)
        return self.f

    def _prefetch_c(self) -> None:
        """Prefetch the lines of C, which are written after the loop."""
        f = self.f
        for r in range(self.rows):
            offset = f.let(f"mul i64 %stride, {r}")
            for v in self.vectors:
                c = element_pointer(f, "%c", f.let(f"add i64 {offset}, {v * LANES}"))
                hints = ("i32", "1"), ("i32", "3"), ("i32", "1")
                f.call("@llvm.prefetch.p0", "void", ("ptr", c), *hints)

    def _multiply(self) -> dict[tuple[int, int], str]:
        """Emit the loop over the depth, with every sum in a register of its own."""
        f = self.f
        f.declarations[FMA] = f"declare {FLOAT_TY} {FMA}({', '.join([FLOAT_TY] * 3)})"
        if self.dtype is DType.BF16:
            operands = f"{FLOAT_TY}, {PAIRS_TY}, {PAIRS_TY}"
            f.declarations[BF16_DOT] = f"declare {FLOAT_TY} {BF16_DOT}({operands})"
        tiles = [(r, v) for r in range(self.rows) for v in self.vectors]
        f.put("br label %turn")
        f.start_block("turn")
        f.put("%k = phi i64 [ 0, %start ], [ %k.next, %work ]")
        for r, v in tiles:
            f.put(f"%s{r}.{v} = phi {FLOAT_TY} [ zeroinitializer, %start ], [ %n{r}.{v}, %work ]")
        f.put("%more = icmp slt i64 %k, %depth")
        f.put("br i1 %more, label %work, label %done")
        f.start_block("work")
        row = f.let(f"mul i64 %k, {WIDTH}")
        b = [self._load("%b", f.let(f"add i64 {row}, {v * LANES}")) for v in self.vectors]
        step = f.let(f"mul i64 %k, {self.depth_stride}")
        for r in range(self.rows):
            offset = f.let(f"add i64 {step}, {r * self.row_stride}")
            scalar = f.let(f"load float, ptr {element_pointer(f, '%a', offset)}, align 4")
            a = splat(f, scalar, "float", LANES)
            for v in self.vectors:
                f.put(f"%n{r}.{v} = {self._multiply_add(a, b[v], f'%s{r}.{v}')}")
        f.put("%k.next = add i64 %k, 1")
        f.put("br label %turn")
        f.start_block("done")
        return {(r, v): f"%s{r}.{v}" for r, v in tiles}

    def _multiply_add(self, a: str, b: str, total: str) -> str:
        """Return the instruction that adds the product of two vectors to a sum."""
        f = self.f
        if self.dtype is DType.BF16:
            pairs = [f.let(f"bitcast {FLOAT_TY} {x} to {PAIRS_TY}") for x in (a, b)]
            operands = ", ".join(f"{PAIRS_TY} {x}" for x in pairs)
            return f"call {FLOAT_TY} {BF16_DOT}({FLOAT_TY} {total}, {operands})"
        if self.fused:
            operands = ", ".join(f"{FLOAT_TY} {x}" for x in (a, b, total))
            return f"call {FLOAT_TY} {FMA}({operands})"
        x = f.let(f"fmul {FLOAT_TY} {a}, {b}")
        return f"fadd {FLOAT_TY} {x}, {total}"

    def _store_whole(self, sums: dict[tuple[int, int], str]) -> None:
        """Store all rows and columns, without masks."""
        f = self.f
        accumulate = f.let(f"icmp ne i64 {f.let(f'and i64 %bits, {ACCUMULATE}')}, 0")
        for (r, v), x in sums.items():
            offset = f.let(f"add i64 {f.let(f'mul i64 %stride, {r}')}, {v * LANES}")
            old = self._load("%c", offset)
            old = f.let(f"select i1 {accumulate}, {FLOAT_TY} {old}, {FLOAT_TY} zeroinitializer")
            store(f, f.let(f"fadd {FLOAT_TY} {x}, {old}"), element_pointer(f, "%c", offset))

    def _store(self, sums: dict[tuple[int, int], str]) -> None:
        """Store the elements that are inside C, row by row."""
        f = self.f
        masks = [lanes_below(f, "%columns", v * LANES) for v in self.vectors]
        accumulate = f.let(f"icmp ne i64 {f.let(f'and i64 %bits, {ACCUMULATE}')}, 0")
        add_bias = f.let(f"icmp ne i64 {f.let(f'and i64 %bits, {ADD_BIAS}')}, 0")
        c_masks = [mask_if(f, accumulate, m) for m in masks]
        bias_masks = [mask_if(f, add_bias, m) for m in masks]
        for r in range(self.rows):
            inside = f.let(f"icmp slt i64 {r}, %rows")
            with f.if_then(inside):
                offset = f.let(f"mul i64 %stride, {r}")
                first = element_pointer(f, "%bias", f.let(f"mul i64 %bias.stride, {r}"))
                for v in self.vectors:
                    c = element_pointer(f, "%c", f.let(f"add i64 {offset}, {v * LANES}"))
                    x = f.let(f"fadd {FLOAT_TY} {sums[r, v]}, {load(f, c, c_masks[v])}")
                    x = f.let(f"fadd {FLOAT_TY} {x}, {self._bias(first, v, bias_masks[v])}")
                    store(f, x, c, masks[v])

    def _bias(self, first: str, vector: int, mask: str) -> str:
        """Return what is added to a vector of a row; zeros if there is no bias."""
        f = self.f
        if not self.by_row:
            return load(f, element_pointer(f, first, str(vector * LANES)), mask)
        x = splat(f, f.let(f"load float, ptr {first}, align 4"), "float", LANES)
        return f.let(f"select {MASK_TY} {mask}, {FLOAT_TY} {x}, {FLOAT_TY} zeroinitializer")

    def _load(self, base: str, index: str) -> str:
        pointer = element_pointer(self.f, base, index)
        return self.f.let(f"load {FLOAT_TY}, ptr {pointer}, align 4")
