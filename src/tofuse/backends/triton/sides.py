"""The index spaces of a launch, and which of them each statement has.

A launch without matrix products has one space. With one it has three: rows and depth, for the left
factor; depth and columns, for the right factor; rows and columns, for the result. A value without
depth has the same shape in all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from tofuse.backends.triton.elementwise import TRITON_TYPES
from tofuse.backends.triton.index_space import IndexSpace
from tofuse.backends.triton.statements import StatementEmitter
from tofuse.ir.kernel import Arg, Compute, Definition, Load, Reduce, Stmt, Store
from tofuse.ir.tile import Contraction, Tile, TileNest
from tofuse.ir.types import DType


class Sides:
    """Emits the statements of a launch, each in its index space."""

    def __init__(self, nest: TileNest, line: Callable[[str], None], exact: bool) -> None:
        self.nest, self.line = nest, line
        self.definitions = {s.name: s for s in nest.kernel.body if not isinstance(s, Store)}
        self.products = {c.product for c in nest.contractions}
        self.contraction_of = {c.total: c for c in nest.contractions}
        spaces = _spaces(nest)
        self.emitters = [StatementEmitter(nest, space, line, exact) for space in spaces]

    @property
    def result(self) -> StatementEmitter:
        """The emitter of values without depth; of all, in a launch without matrix products."""
        return self.emitters[0]

    def spaces_with(self, tile: Tile) -> list[IndexSpace]:
        """Return a space for each shape of a tile's index: each factor has its own of the depth."""
        both = len(self.emitters) > 1 and tile is self.nest.loop_tile
        return [e.index_space for e in (self.emitters[1:] if both else self.emitters[:1])]

    def of(self, stmt: Stmt) -> StatementEmitter:
        """Return the emitter of a statement; of the left side if both sides have it."""
        return self._all_of(stmt)[0]

    def define(self, stmt: Definition, suffix: str) -> None:
        """Emit the line that computes a value: on both sides, if it has no axis but the depth."""
        if stmt.name in self.products:
            return
        for e in self._all_of(stmt):
            is_right = len(self.emitters) > 1 and e is self.emitters[-1]
            e.define(stmt, f"{suffix}t" if is_right else suffix)
            if e is self.result:
                self.rename(stmt.name, e.names[stmt.name])

    def rename(self, value: str, variable: str) -> None:
        """Set the variable that holds a value without depth."""
        for e in self.emitters:
            e.names[value] = variable

    def dot(self, c: Contraction) -> str:
        """Return the sum of a matrix product after the current blocks of its factors."""
        _, left, right = self.emitters
        factors = f"{self._factor(left, c.left, c.dtype)}, {self._factor(right, c.right, c.dtype)}"
        return f'tl.dot({factors}, {c.total.name}, input_precision="ieee")'

    def _factor(self, e: StatementEmitter, name: str, dtype: DType) -> str:
        """Return a factor in its dtype, 0 outside of the depth."""
        depth, stmt = self.nest.loop_tile, self.definitions[name]
        assert depth is not None
        unrounded: Arg = name
        if dtype is not DType.F32:
            assert isinstance(stmt, Compute)
            unrounded = stmt.args[0]
        text = e.arg(unrounded, DType.F32)
        is_load = isinstance(unrounded, str) and isinstance(self.definitions[unrounded], Load)
        if e.index_space.is_masked(depth) and not is_load:  # a masked load is 0 there
            text = f"tl.where({e.index_space.mask(depth)}, {text}, 0.0)"
        return f"{text}.to({TRITON_TYPES[dtype]})"

    def _all_of(self, stmt: Stmt) -> list[StatementEmitter]:
        if len(self.emitters) == 1 or stmt in self.contraction_of:
            return [self.result]
        depth = self.nest.loop_tile
        assert depth is not None
        result, left, right = self.emitters
        axes = result.statement_axes[stmt]
        if axes.isdisjoint(depth.axes):
            return [result]
        rows, columns = result.index_space.tiles
        if not axes.isdisjoint(columns.axes):
            return [right]
        alone = axes.isdisjoint(rows.axes) and not isinstance(stmt, (Store, Reduce))
        return [left, right] if alone else [left]


def _spaces(nest: TileNest) -> list[IndexSpace]:
    """Return the space of the result; and those of the factors, if there are any."""
    depth = nest.loop_tile
    if not nest.contractions or depth is None:
        return [IndexSpace(nest)]
    rows, columns = [t for t in nest.tiling.tiles if t is not depth][-2:]
    return [
        IndexSpace(nest, (rows, columns)),
        IndexSpace(nest, (rows, depth)),
        IndexSpace(nest, (depth, columns), depth),
    ]
