"""Assert that the text of nests and tile programs is complete."""

from tofuse.backends.llvm.emit import emit
from tofuse.backends.triton.emit import emit as emit_triton
from tofuse.ir.nest import Nest
from tofuse.ir.parse_nest import parse_nest
from tofuse.ir.parse_tile import parse_tile
from tofuse.ir.tile import TileProgram


def assert_complete(loops: Nest | TileProgram) -> None:
    """Assert that what the text says prints to the same text and is emitted as the same code."""
    text = repr(loops)
    if isinstance(loops, Nest):
        nest = parse_nest(text)
        assert repr(nest) == text
        assert emit(nest) == emit(loops)
    else:
        program = parse_tile(text)
        assert repr(program) == text
        assert emit_triton(program) == emit_triton(loops)
