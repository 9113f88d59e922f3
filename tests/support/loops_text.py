"""Assert that nests and tile programs are valid, and that their text is complete."""

from tofuse.backends.cpu.llvm.emit import EmitOptions, emit
from tofuse.backends.cpu.llvm.matmul.chain_kernel import emit_chain
from tofuse.backends.cuda.triton.emit import emit as emit_triton
from tofuse.ir.nest import Nest
from tofuse.ir.parse_nest import parse_nest
from tofuse.ir.parse_product_chain import parse_chain
from tofuse.ir.parse_tile import parse_tile
from tofuse.ir.product_chain import ProductChain
from tofuse.ir.schedule import ScheduledKernel
from tofuse.ir.tile import TileProgram
from tofuse.ir.verify_nest import verify_nest
from tofuse.ir.verify_tile import verify_tile


def assert_complete(loops: ScheduledKernel) -> None:
    """Assert that the loops are valid and that their text has all that the emitter reads.

    What the parser reads prints as the same text, and is emitted as the same code.
    """
    text = repr(loops)
    if isinstance(loops, Nest):
        verify_nest(loops)
        nest = parse_nest(text)
        assert repr(nest) == text
        assert emit(nest) == emit(loops)
    elif isinstance(loops, ProductChain):
        chain = parse_chain(text)
        assert repr(chain) == text
        assert emit_chain(chain, EmitOptions()) == emit_chain(loops, EmitOptions())
    else:
        assert isinstance(loops, TileProgram)
        verify_tile(loops)
        program = parse_tile(text)
        assert repr(program) == text
        assert emit_triton(program) == emit_triton(loops)
