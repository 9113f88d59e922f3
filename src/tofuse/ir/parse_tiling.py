"""Parse the text of tilings, as a stored choice has it."""

from __future__ import annotations

from tofuse.errors import ParseError
from tofuse.ir.tile import Tile, Tiling, TilingChoice

ROLES = ("grid", "whole", "loop", "split")
NUMBERS = ("warps", "splits", "stages", "swizzle")  # fields of a tiling


def parse_tiling_choice(text: str) -> TilingChoice:
    """Parse the `repr` of a choice. Raises ParseError."""
    words = [word.strip() for word in text.split("|")] if text.strip() else []
    separate = words[:1] == ["separate"]
    return TilingChoice(tuple(map(parse_tiling, words[separate:])), separate)


def parse_tiling(text: str) -> Tiling:
    """Parse the `repr` of a tiling. Raises ParseError."""
    tiles: list[Tile] = []
    numbers: dict[str, int] = {}
    for part in text.split(";"):
        name, _, value = part.strip().partition(" ")
        axes, _, block = value.rpartition("/")
        if name in ROLES and axes and block.isdecimal():
            tiles.append(Tile(tuple(axes.split(",")), int(block), name))
        elif name in NUMBERS and name not in numbers and value.isdecimal():
            numbers[name] = int(value)
        else:
            raise ParseError(f"no tile or number of a tiling: {part.strip()!r}")
    if "warps" not in numbers:
        raise ParseError(f"a tiling without warps: {text!r}")
    return Tiling(tuple(tiles), **numbers)
