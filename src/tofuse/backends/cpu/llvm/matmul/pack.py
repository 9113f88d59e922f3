"""Packing: copy a block of an operand into micropanels, in the order in which the kernel reads it.

A block has lines (rows of A, columns of B), each with the elements of a part of the sum. A
micropanel holds as many lines as the microkernel takes at once; lines outside the block are zeros.
"""

from __future__ import annotations

import functools

from tofuse.backends.cpu.llvm.ir_text import ALIGNED_STACK, FunctionBuilder
from tofuse.backends.cpu.llvm.matmul.masked_vectors import (
    FLOAT_TY,
    LANES,
    element_pointer,
    function_text,
    lanes_below,
    load,
    mask_if,
    module_text,
    store,
)
from tofuse.backends.cpu.llvm.shuffles import transpose
from tofuse.cost.thresholds import PANEL_DEPTH, PANEL_OVERHEAD
from tofuse.ir.dims import Dim
from tofuse.ir.schedule import Target

WIDTH = 2 * LANES  # columns of B in a micropanel
AMX_MICROPANEL_ROWS = 32
AVX512_MICROKERNEL_ROWS = 14


def microkernel_size(target: Target) -> tuple[int, int]:
    """Return how many rows and columns of C fit in the registers.

    A row of B and one number of A fit beside them.
    """
    columns = WIDTH if target.native_lanes == LANES else LANES
    vectors = columns // target.native_lanes
    return (target.registers - 1 - vectors) // vectors, columns


def micropanel_rows(m: Dim, most: int = AVX512_MICROKERNEL_ROWS) -> int:
    """Return the rows of C held in registers: many, but few unused in the last micropanel."""
    if not isinstance(m, int):
        return most
    if m <= most:
        return max(1, m)
    choices = range(most, most // 2, -1)
    return min(choices, key=lambda rows: -(-m // rows) * (rows + PANEL_OVERHEAD))


def line_stride(elements: int) -> int:
    """Return the stride of lines that have so many elements: they do not share cache sets.

    An element is a number of 4 bytes.
    """
    return elements + LANES


def micropanel_strides(depth_major: bool, depth: int) -> tuple[int, int]:
    """Return the elements between lines and between steps of depth in a micropanel of A.

    The micropanel has room for `depth` steps. A depth-major one has all lines of one step next to
    each other. A line-major one has one line after the other, each padded by a cache line so that
    lines do not map to the same cache sets.
    """
    return (1, LANES) if depth_major else (line_stride(depth), 1)


def micropanel_elements(lines: int, depth_major: bool, depth: int) -> int:
    """Return the number of elements of a micropanel of A with room for `depth` steps."""
    return depth * LANES if depth_major else lines * line_stride(depth)


def right_micropanel_elements(depth: int) -> int:
    """Return the number of elements of a micropanel of B with room for `depth` steps."""
    return -(-depth // LANES) * LANES * WIDTH


def tile_stride(columns: int) -> int:
    """Return the elements between rows of a tile of C: micropanels fill the last columns."""
    return line_stride(-(-columns // WIDTH) * WIDTH)


ARGUMENTS = "ptr %from, i64 %stride, i64 %lines, i64 %depth, ptr %to"


def pack_head(name: str) -> str:
    """Return the signature of a pack."""
    return f"define void {name}({ARGUMENTS}) nounwind {ALIGNED_STACK}"


@functools.cache
def pack_depth_major(lines: int, width: int) -> str:
    """Pack an operand whose lines are contiguous: `to[k][line] = from[k * stride + line]`.

    A micropanel has `width` elements per step of depth.
    """
    f = FunctionBuilder()
    with f.loop("0", "%lines", str(lines)) as first:
        micropanel = _micropanel(f, first, lines, width)
        masks = [lanes_below(f, _line_count(f, first, lines), v) for v in range(0, width, LANES)]
        with f.loop("0", "%depth", "1") as k:
            offset = f.let(f"add i64 {f.let(f'mul i64 {k}, %stride')}, {first}")
            row = f.let(f"mul i64 {k}, {width}")
            for v, mask in zip(range(0, width, LANES), masks, strict=True):
                x = load(f, element_pointer(f, "%from", f.let(f"add i64 {offset}, {v}")), mask)
                store(f, x, element_pointer(f, micropanel, f.let(f"add i64 {row}, {v}")))
    return module_text(f, pack_head("@pack"))


@functools.cache
def pack_line_major(lines: int) -> str:
    """Pack an operand that is contiguous along the sum into line-major micropanels."""
    f = FunctionBuilder()
    line_stride, _ = micropanel_strides(depth_major=False, depth=PANEL_DEPTH)
    with f.loop("0", "%lines", "1") as line:
        source = element_pointer(f, "%from", f.let(f"mul i64 {line}, %stride"))
        target = element_pointer(f, "%to", f.let(f"mul i64 {line}, {line_stride}"))
        with f.loop("0", "%depth", str(LANES)) as k:
            mask = lanes_below(f, f.let(f"sub i64 %depth, {k}"), 0)
            store(f, load(f, element_pointer(f, source, k), mask), element_pointer(f, target, k))
    rounded_up = f.let(f"add i64 %lines, {lines - 1}")
    end = f.let(f"mul i64 {f.let(f'sdiv i64 {rounded_up}, {lines}')}, {lines}")
    with f.loop("%lines", end, "1") as line:
        target = element_pointer(f, "%to", f.let(f"mul i64 {line}, {line_stride}"))
        with f.loop("0", "%depth", str(LANES)) as k:
            store(f, "zeroinitializer", element_pointer(f, target, k))
    return module_text(f, pack_head("@pack"))


@functools.cache
def pack_transposed() -> str:
    """Return the text of a module with `transposing_pack_function`, `@pack`."""
    declarations: dict[str, str] = {}
    text = transposing_pack_function("@pack", declarations, padded=False)
    return "\n".join([*declarations.values(), text])


def transposing_pack_function(name: str, declarations: dict[str, str], *, padded: bool) -> str:
    """Pack an operand that is contiguous along the sum into depth-major micropanels.

    Blocks are transposed in registers. The depth is rounded up to a multiple of a vector. The added
    steps are zeros, and so are the lines outside the block. With `padded`, each line of the operand
    must be readable up to that multiple. The added steps then have the numbers that stand there,
    and each line outside the block is a copy of line 0. What the function calls is added to
    `declarations`.
    """
    f = FunctionBuilder()
    with f.loop("0", "%lines", str(WIDTH)) as first:
        micropanel = _micropanel(f, first, WIDTH, WIDTH)
        with f.loop("0", "%depth", str(LANES)) as k:
            depth_mask = lanes_below(f, f.let(f"sub i64 %depth, {k}"), 0)
            row = f.let(f"mul i64 {k}, {WIDTH}")
            with f.loop("0", str(WIDTH), str(LANES)) as v:
                vectors = []
                for r in range(LANES):
                    line = f.let(f"add i64 {first}, {f.let(f'add i64 {v}, {r}')}")
                    is_inside = f.let(f"icmp slt i64 {line}, %lines")
                    # outside the block: the address of line 0, which is mapped
                    valid_line = f.let(f"select i1 {is_inside}, i64 {line}, i64 0")
                    offset = f.let(f"add i64 {f.let(f'mul i64 {valid_line}, %stride')}, {k}")
                    source = element_pointer(f, "%from", offset)
                    if padded:
                        vectors.append(f.let(f"load {FLOAT_TY}, ptr {source}, align 4"))
                    else:
                        vectors.append(load(f, source, mask_if(f, is_inside, depth_mask)))
                column = f.let(f"add i64 {row}, {v}")
                for r, x in enumerate(transpose(f, vectors, FLOAT_TY)):
                    offset = f.let(f"add i64 {column}, {r * WIDTH}")
                    store(f, x, element_pointer(f, micropanel, offset))
    return function_text(f, pack_head(name), declarations)


def _micropanel(f: FunctionBuilder, first: str, lines: int, width: int) -> str:
    """Return the address of the micropanel whose first line is `first`."""
    start = f.let(f"mul i64 {f.let(f'sdiv i64 {first}, {lines}')}, {PANEL_DEPTH * width}")
    return f.let(f"getelementptr float, ptr %to, i64 {start}")


def _line_count(f: FunctionBuilder, first: str, lines: int) -> str:
    """Return how many lines of a micropanel are in the block."""
    remaining = f.let(f"sub i64 %lines, {first}")
    is_last = f.let(f"icmp slt i64 {remaining}, {lines}")
    return f.let(f"select i1 {is_last}, i64 {remaining}, i64 {lines}")
