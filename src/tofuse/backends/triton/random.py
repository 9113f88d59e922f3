"""Uniform numbers in Triton: whole groups of 64 where a block holds them, else one by one."""

from __future__ import annotations

from tofuse.backends.triton.space import Space
from tofuse.ir.dims import Dim, exact_div, known_multiple
from tofuse.ir.kernel import AffineExpr, Uniform, make_affine
from tofuse.ir.tile import Tile
from tofuse.ops.philox import GROUP, LANES


def uniform(space: Space, stmt: Uniform, seed: tuple[str, str], axes: frozenset[str]) -> str:
    """The expression of the numbers; `seed` are its two words."""
    assert isinstance(stmt.stream, int)  # kernels alike but for streams are shared on the CPU alone
    words = f"{seed[0]}, {seed[1]}, {stmt.stream & 0xFFFFFFFF}"
    found = _blocks(space, stmt)
    if found is not None:
        tile, others = found
        dims = [t for t in space.tiles if t is not tile and not set(t.axes).isdisjoint(axes)]
        rows = dims[0].block if dims else 1
        counter = f"{space.start(tile)} // 4 + tl.arange(0, {tile.block // 4})[None, :]"
        first = f"{space.affine(others)} * {LANES}"
        if space.rank == 1:
            first = f"tl.full([1, 1], 0, tl.int32) + {first}"
        shape = f"[{rows}, {tile.block // 4}]"
        counter = f"tl.broadcast_to({counter} + ({first}), {shape})"
        block = f"_uniform_block({counter}, {words}, {rows}, {tile.block // GROUP})"
        return block if space.rank == 2 else f"tl.reshape({block}, [{tile.block}])"
    groups = f"(({space.dim(stmt.extent)} + {GROUP - 1}) // {GROUP})"
    col = space.affine(stmt.col)
    group = f"({space.affine(stmt.row)}) * {groups} + ({col}) // {GROUP}"
    zero = (
        f"tl.zeros({space.shape(())}, tl.int32) + " if space.rank else "tl.full([], 0, tl.int32) + "
    )
    return f"_uniform({zero}{group}, {zero}{col}, {words})"


def _blocks(space: Space, u: Uniform) -> tuple[Tile, AffineExpr] | None:
    """The tile whose blocks are whole groups, and the group number at its start elsewhere."""
    if not 1 <= space.rank <= 2:
        return None
    tile = space.tiles[-1]
    if tile.block % GROUP:
        return None
    if known_multiple(u.extent, GROUP):
        flat = u.row * u.extent + u.col
        more: AffineExpr = AffineExpr()
    else:
        if any(u.row.coefficient(a) != 0 for a in tile.axes):
            return None
        flat, groups = u.col, _ceil(u.extent)
        if groups is None:
            return None
        more = u.row * groups
    if space.parts(tile, flat) != [(space.index(tile), 1)]:
        return None
    rest = [(a, exact_div(c, GROUP)) for a, c in flat.terms if a not in tile.axes]
    const = exact_div(flat.const, GROUP) if flat.const != 0 else 0
    terms = [(a, c) for a, c in rest if c is not None]
    if const is None or len(terms) < len(rest):
        return None
    return tile, make_affine(terms, const) + more


def _ceil(extent: Dim) -> Dim | None:
    return -(-extent // GROUP) if isinstance(extent, int) else None
