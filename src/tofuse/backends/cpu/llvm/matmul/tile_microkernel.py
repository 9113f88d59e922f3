"""The microkernel of AMX: 32 by 32 of C in four tiles, products of tiles of bfloat16.

A tile has 16 rows of 64 bytes. The intrinsics name tile registers by number, and LLVM does not
allocate them; a call clobbers none, since no other code of ours uses tiles. The configuration lasts
until `tilerelease`.
"""

from __future__ import annotations

from tofuse.backends.cpu.llvm.ir_text import ALIGNED_STACK, FunctionBuilder
from tofuse.backends.cpu.llvm.matmul.masked_vectors import element_pointer, module_text
from tofuse.backends.cpu.llvm.matmul.microkernel import ACCUMULATE
from tofuse.backends.cpu.llvm.matmul.pack import LANES, WIDTH, micropanel_strides

TILES, TILE_SIDE, TILE_ROW_BYTES = 8, LANES, 64
PALETTE = 1  # eight tiles of one KiB
SUMS = {(0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 1): 3}  # the tile of C by its row and column
A_TILES, B_TILES = (4, 5), (6, 7)


def tile_microkernel_text() -> str:
    """Return `void @micro` with the parameters of `microkernel_text`; rows and columns are 32.

    A is line-major, and its depth is filled with zeros to a multiple of 16 steps, as that of B.
    """
    f = FunctionBuilder()
    row_stride, _ = micropanel_strides(depth_major=False)
    stride = f.let("shl i64 %stride, 2")
    accumulates = f.let(f"icmp ne i64 {f.let(f'and i64 %bits, {ACCUMULATE}')}, 0")
    for tile in SUMS.values():
        f.call("@llvm.x86.tilezero", "void", ("i8", str(tile)))
    with f.if_then(accumulates):
        for (row, column), tile in SUMS.items():
            _tile_load(f, tile, _tile_of_c(f, row, column), stride)
    with f.loop("0", "%depth", str(LANES)) as k:
        for row, tile in enumerate(A_TILES):
            place = f.let(f"add i64 {k}, {row * TILE_SIDE * row_stride}")
            _tile_load(f, tile, element_pointer(f, "%a", place), str(4 * row_stride))
        first = f.let(f"mul i64 {k}, {WIDTH}")
        for column, tile in enumerate(B_TILES):
            place = f.let(f"add i64 {first}, {column * TILE_SIDE}")
            _tile_load(f, tile, element_pointer(f, "%b", place), str(4 * WIDTH))
        for (row, column), tile in SUMS.items():
            numbers = (("i8", str(t)) for t in (tile, A_TILES[row], B_TILES[column]))
            f.call("@llvm.x86.tdpbf16ps", "void", *numbers)
    for (row, column), tile in SUMS.items():
        c = _tile_of_c(f, row, column)
        f.call("@llvm.x86.tilestored64", "void", ("i8", str(tile)), ("ptr", c), ("i64", stride))
    head = (
        "define void @micro(ptr %a, ptr %b, i64 %depth, ptr %c, i64 %stride, i64 %rows, "
        f"i64 %columns, i64 %bits, ptr %bias, i64 %bias.stride) nounwind {ALIGNED_STACK}"
    )
    return module_text(f, head)


def tile_configuration(name: str) -> str:
    """Return the definition of the configuration: all tiles have 16 rows of 64 bytes."""
    words = [PALETTE, 0, *[0] * 14]  # bytes 0 to 15
    row_bytes = [x for _ in range(TILES) for x in (TILE_ROW_BYTES, 0)] + [0] * 16
    rows = [TILE_SIDE] * TILES + [0] * 8
    text = ", ".join(f"i8 {x}" for x in (*words, *row_bytes, *rows))
    return f"{name} = internal constant [64 x i8] [{text}], align 64"


def configure_tiles(f: FunctionBuilder, configuration: str) -> None:
    """Configure the tiles of this thread."""
    f.call("@llvm.x86.ldtilecfg", "void", ("ptr", configuration))


def _tile_load(f: FunctionBuilder, tile: int, pointer: str, stride: str) -> None:
    """Load 16 rows, `stride` bytes apart."""
    operands = ("i8", str(tile)), ("ptr", pointer), ("i64", stride)
    f.call("@llvm.x86.tileloadd64", "void", *operands)


def _tile_of_c(f: FunctionBuilder, row: int, column: int) -> str:
    first = f.let(f"mul i64 %stride, {row * TILE_SIDE}")
    return element_pointer(f, "%c", f.let(f"add i64 {first}, {column * TILE_SIDE}"))
