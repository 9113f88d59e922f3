"""Parse the text of tilings, as a stored choice has it."""

from __future__ import annotations

from tofuse.ir.line_reader import LineReader
from tofuse.ir.tile import Tile, Tiling, TilingChoice

ROLES = ("grid", "whole", "loop", "split")
NUMBERS = ("warps", "splits", "stages", "swizzle")  # fields of a tiling


def read_tiling_choice(line: LineReader) -> TilingChoice:
    """Consume tilings separated by `|`."""
    tilings: list[Tiling] = []
    separate = line.skip("separate")
    if line.peek() is not None and (not separate or line.skip("|")):
        tilings = line.separated(read_tiling, "|")
    return TilingChoice(tuple(tilings), separate)


def read_tiling(line: LineReader) -> Tiling:
    """Consume `grid i0/2; whole i1/256; warps 4`: tiles, then numbers."""
    tiles: list[Tile] = []
    numbers: dict[str, int] = {}
    while True:
        if line.peek() in ROLES:
            tiles.append(read_tile(line))
        elif line.peek() in NUMBERS and line.peek() not in numbers:
            name = line.word()
            numbers[name] = line.number()
        else:
            raise line.error("a tile or a number of a tiling expected")
        if not line.skip(";"):
            break
    if "warps" not in numbers:
        raise line.error("a tiling without warps")
    return Tiling(tuple(tiles), **numbers)


def read_tile(line: LineReader) -> Tile:
    """Consume `grid i0,i1/2`."""
    role, start = line.word(), line.at
    *outer, last = line.words() or ("",)
    axis, _, block = last.rpartition("/")
    if not axis or not block.isdecimal():
        raise line.error("axes and a block such as i0,i1/64 expected", start)
    return Tile((*outer, axis), int(block), role)
