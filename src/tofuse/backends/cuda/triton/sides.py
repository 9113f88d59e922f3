"""The sides of a launch with matrix products: which emitters emit a statement, and the products.

Such a launch has three index spaces: rows and columns, for the result; rows and depth, for the left
factor; depth and columns, for the right factor. A value without depth has one shape in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.backends.cuda.triton.elementwise import TRITON_TYPES
from tofuse.backends.cuda.triton.index_space import IndexSpace
from tofuse.backends.cuda.triton.statements import StatementEmitter
from tofuse.ir.kernel import WRITES, Compute, Load, Reduce, Stmt
from tofuse.ir.statement import Arg
from tofuse.ir.tile import Contraction, Tile, TileNest
from tofuse.ir.types import DType


class ContractionSides:
    """The emitters of the result, the left and the right factor of a launch's matrix products."""

    def __init__(self, nest: TileNest, emitters: Sequence[StatementEmitter]) -> None:
        self.result, self.left, self.right = emitters
        self.definitions = nest.kernel.definitions
        self.products = {c.product for c in nest.contractions}
        self.contraction_of = {c.total: c for c in nest.contractions}
        self.depth, self.rows, self.columns = _tiles(nest)

    def emitters_of(self, stmt: Stmt) -> list[StatementEmitter]:
        """Return where a statement is emitted: on both sides, if its only axis is the depth.

        The products are parts of matrix instructions, and emitted nowhere.
        """
        if not isinstance(stmt, WRITES) and stmt.name in self.products:
            return []
        axes = self.result.statement_axes[stmt]
        if stmt in self.contraction_of or axes.isdisjoint(self.depth.axes):
            return [self.result]
        if not axes.isdisjoint(self.columns.axes):
            return [self.right]
        only_depth = axes.isdisjoint(self.rows.axes) and not isinstance(stmt, (*WRITES, Reduce))
        return [self.left, self.right] if only_depth else [self.left]

    def has_depth(self, value: str) -> bool:
        """Whether a value differs from side to side."""
        return not self.result.value_axes[value].isdisjoint(self.depth.axes)

    def dot(self, c: Contraction) -> str:
        """Return the sum of a matrix product after the current blocks of its factors."""
        left, right = (
            self._factor(self.left, c.left, c.dtype),
            self._factor(self.right, c.right, c.dtype),
        )
        return f'tl.dot({left}, {right}, {c.total.name}, input_precision="ieee")'

    def _factor(self, e: StatementEmitter, name: str, dtype: DType) -> str:
        """Return a factor in its dtype, 0 outside of the depth."""
        stmt = self.definitions[name]
        unrounded: Arg = name
        if dtype is not DType.F32:
            assert isinstance(stmt, Compute)
            unrounded = stmt.args[0]
        text = e.arg(unrounded, DType.F32)
        is_load = isinstance(unrounded, str) and isinstance(self.definitions[unrounded], Load)
        if e.index_space.is_masked(self.depth) and not is_load:  # a masked load is 0 there
            text = f"tl.where({e.index_space.mask(self.depth)}, {text}, 0.0)"
        return f"{text}.to({TRITON_TYPES[dtype]})"


def contraction_spaces(nest: TileNest) -> list[IndexSpace]:
    """Return the index spaces of the result, the left factor and the right factor."""
    depth, rows, columns = _tiles(nest)
    return [
        IndexSpace(nest, tiles=(rows, columns)),
        IndexSpace(nest, tiles=(rows, depth)),
        IndexSpace(nest, tiles=(depth, columns), renamed=depth),
    ]


def _tiles(nest: TileNest) -> tuple[Tile, Tile, Tile]:
    """Return the tiles of depth, rows and columns."""
    depth = nest.tiling.loop_tile
    assert depth is not None
    rows, columns = [t for t in nest.tiling.tiles if t is not depth][-2:]
    return depth, rows, columns
