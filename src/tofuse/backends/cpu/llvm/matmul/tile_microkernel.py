"""The microkernel of AMX: 32 by 32 of C in four tiles, products of tiles of bfloat16.

A tile has 16 rows of 64 bytes. The intrinsics name tile registers by number; LLVM does not allocate
them. No call lies between two uses of a tile. The configuration survives the calls between two
microkernels, as nothing that they call configures tiles.
"""

from __future__ import annotations

from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder
from tofuse.backends.cpu.llvm.matmul.masked_vectors import element_pointer, function_text
from tofuse.backends.cpu.llvm.matmul.microkernel import ACCUMULATE, microkernel_head
from tofuse.backends.cpu.llvm.matmul.pack import LANES, WIDTH, micropanel_strides

TILES, TILE_SIDE, TILE_ROW_BYTES = 8, LANES, 64
EIGHT_TILE_PALETTE = 1
C_TILES = {(0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 1): 3}
A_TILES, B_TILES = (4, 5), (6, 7)


def tile_microkernel_function(name: str, panel_depth: int, declarations: dict[str, str]) -> str:
    """Return a function with the parameters of `microkernel_function`, for 32 rows and columns.

    A is line-major, with room for `panel_depth` steps. Zeros follow the depth of A and of B, up to
    a multiple of 16 steps. What the function calls is added to `declarations`.
    """
    f = FunctionBuilder()
    row_stride, _ = micropanel_strides(depth_major=False, depth=panel_depth)
    stride = f.let("shl i64 %stride, 2")
    accumulates = f.let(f"icmp ne i64 {f.let(f'and i64 %bits, {ACCUMULATE}')}, 0")
    for tile in C_TILES.values():
        f.call("@llvm.x86.tilezero", "void", ("i8", str(tile)))
    with f.if_then(accumulates):
        for (row, column), tile in C_TILES.items():
            _tile_load(f, tile, _tile_of_c(f, row, column), stride)
    with f.loop("0", "%depth", str(LANES)) as k:
        for row, tile in enumerate(A_TILES):
            place = f.let(f"add i64 {k}, {row * TILE_SIDE * row_stride}")
            _tile_load(f, tile, element_pointer(f, "%a", place), str(4 * row_stride))
        first = f.let(f"mul i64 {k}, {WIDTH}")
        for column, tile in enumerate(B_TILES):
            place = f.let(f"add i64 {first}, {column * TILE_SIDE}")
            _tile_load(f, tile, element_pointer(f, "%b", place), str(4 * WIDTH))
        for (row, column), tile in C_TILES.items():
            numbers = (("i8", str(t)) for t in (tile, A_TILES[row], B_TILES[column]))
            f.call("@llvm.x86.tdpbf16ps", "void", *numbers)
    for (row, column), tile in C_TILES.items():
        c = _tile_of_c(f, row, column)
        f.call("@llvm.x86.tilestored64", "void", ("i8", str(tile)), ("ptr", c), ("i64", stride))
    return function_text(f, microkernel_head(name), declarations)


def tile_configuration(name: str) -> str:
    """Return the definition of the configuration: all tiles have 16 rows of 64 bytes."""
    words = [EIGHT_TILE_PALETTE, 0, *[0] * 14]
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
