"""Tilings from text."""

from tofuse.ir.line_reader import END, LineReader
from tofuse.ir.parse_tiling import read_tiling_choice
from tofuse.ir.tile import TilingChoice


def parse_tiling_choice(text: str) -> TilingChoice:
    """Parse the `repr` of a choice. Raises ParseError."""
    line = LineReader(1, text)
    choice = read_tiling_choice(line)
    line.expect(END)
    return choice
