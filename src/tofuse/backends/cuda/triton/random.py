"""Triton expressions of uniform random numbers: for whole groups of 64 elements, or one by one."""

from __future__ import annotations

from tofuse.backends.cuda.triton.index_space import IndexSpace
from tofuse.ir.affine import AffineExpr, make_affine
from tofuse.ir.dims import exact_div, known_multiple
from tofuse.ir.kernel import Uniform
from tofuse.ir.tile import Tile, draws_halves
from tofuse.ops.philox import PHILOX_BLOCK


def uniform_expression(
    space: IndexSpace,
    stmt: Uniform,
    seed: tuple[str, str],
    axes: frozenset[str],
    element_bytes: int,
) -> str:
    """Return the expression of the numbers; `seed` are its two words.

    A thread holds neighbouring elements of 16 bytes, of `element_bytes` each.
    """
    stream = stmt.stream
    words = str(stream & 0xFFFFFFFF) if isinstance(stream, int) else space.size(stream)
    arguments = f"{seed[0]}, {seed[1]}, {words}"
    if stmt.below is not None:
        arguments += f", {stmt.below}"
    block_groups = _block_groups(space, stmt)
    if block_groups is not None:
        function, together = _block_function(stmt, element_bytes)
        tile, others = block_groups
        dims = [t for t in space.tiles if t is not tile and not set(t.axes).isdisjoint(axes)]
        rows = dims[0].block if dims else 1
        counter = f"{space.start(tile)} // {together}"
        counter += f" + tl.arange(0, {tile.block // together})[None, :]"
        first = f"{space.affine(others)} * {PHILOX_BLOCK // together}"
        if space.rank == 1:
            first = f"tl.full([1, 1], 0, tl.int32) + {first}"
        shape = f"[{rows}, {tile.block // together}]"
        counter = f"tl.broadcast_to({counter} + ({first}), {shape})"
        expression = f"{function}({counter}, {arguments}, {rows}, {tile.block})"
        return expression if space.rank == 2 else f"tl.reshape({expression}, [{tile.block}])"
    function = "_uniform" if stmt.below is None else "_bernoulli"
    groups = f"(({space.size(stmt.extent)} + {PHILOX_BLOCK - 1}) // {PHILOX_BLOCK})"
    col = space.affine(stmt.col)
    group = f"({space.affine(stmt.row)}) * {groups} + ({col}) // {PHILOX_BLOCK}"
    zeros = f"tl.zeros({space.shape(())}, tl.int32)" if space.rank else "tl.full([], 0, tl.int32)"
    return f"{function}({zeros} + {group}, {zeros} + {col}, {arguments})"


def _block_function(stmt: Uniform, element_bytes: int) -> tuple[str, int]:
    """Return the function that draws a block, and how many elements it draws at a time."""
    if stmt.below is None:
        return "_uniform_block", 4
    return ("_bernoulli_block", 8) if draws_halves(element_bytes) else ("_bernoulli_quads", 4)


def _block_groups(space: IndexSpace, u: Uniform) -> tuple[Tile, AffineExpr] | None:
    """Return the tile whose blocks are whole groups, and the group number by the other axes.

    Return None if blocks are not whole groups.
    """
    if not 1 <= space.rank <= 2:
        return None
    tile = space.tiles[-1]
    if tile.block % PHILOX_BLOCK:
        return None
    if known_multiple(u.extent, PHILOX_BLOCK):
        flat = u.row * u.extent + u.col
        row_groups = AffineExpr()
    else:
        varies = any(u.row.coefficient(a) != 0 for a in tile.axes)
        if varies or not isinstance(u.extent, int):
            return None
        flat, row_groups = u.col, u.row * -(-u.extent // PHILOX_BLOCK)
    if space.index_terms(tile, flat) != [(space.index(tile), 1)]:
        return None
    outer_terms = [(a, exact_div(c, PHILOX_BLOCK)) for a, c in flat.terms if a not in tile.axes]
    const = exact_div(flat.const, PHILOX_BLOCK) if flat.const != 0 else 0
    terms = [(a, c) for a, c in outer_terms if c is not None]
    if const is None or len(terms) < len(outer_terms):
        return None
    return tile, make_affine(terms, const) + row_groups
