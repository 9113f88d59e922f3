"""The index spaces of the two parts of an unaligned row: its whole vectors, and its edge.

A row begins at the index `row`. At `aligned`, `shift` elements later, an address is aligned. From
there on, `inner` elements fill whole vectors, which blocks of the tile hold. The edge is one block
of two vectors: at most one for the elements before, and one for those after.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tofuse.backends.cuda.triton.index_space import IndexSpace
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import known_multiple
from tofuse.ir.tile import RowAlignment, Tile, TileNest


class WholeVectors(IndexSpace):
    """The index space of a launch whose blocks hold only whole vectors of unaligned rows."""

    def __init__(self, nest: TileNest, alignment: RowAlignment) -> None:
        super().__init__(nest, alignment.start.axes)
        self.alignment = alignment

    def index_lines(self, tile: Tile, start: str) -> Iterator[str]:
        if tile is not self.alignment.tile:
            yield from super().index_lines(tile, start)
            return
        k = self.tile_numbers[tile]
        yield f"{self.start(tile)} = {self.origin(start)}"
        yield f"at{k} = {self.arange(tile)}"
        yield f"{self.index(tile)} = shift{k} + at{k}"
        yield f"{self.mask(tile)} = at{k} < inner{k}"

    def row_lines(self) -> Iterator[str]:
        """Return the lines that divide the rows of this instance, or of an iteration."""
        tile, n = self.alignment.tile, self.alignment.elements
        k, extent = self.tile_numbers[tile], self.size(self.nest.extent(tile))
        yield f"row{k} = {self.origin(self.affine(self.alignment.start))}"
        yield f"aligned{k} = (row{k} + {n - 1}) // {n} * {n}"
        yield f"shift{k} = aligned{k} - row{k}"
        yield f"inner{k} = ({extent} - shift{k}) // {n} * {n}"

    def is_masked(self, tile: Tile) -> bool:
        return tile is self.alignment.tile or super().is_masked(tile)

    def address(self, index: AffineExpr) -> str:
        """Return an index so that Triton sees that it is a multiple of the elements, if it is."""
        tile, start = self.alignment.tile, self.alignment.start
        between = (
            AffineExpr(tuple(t for t in index.terms if t[0] not in tile.axes), index.const)
            + start * -1
        )
        factors = [between.const, *(c for _, c in between.terms)]
        if self.index_terms(tile, index) != [(self.index(tile), 1)] or not all(
            known_multiple(c, self.alignment.elements) for c in factors
        ):
            return self.affine(index)
        k = self.tile_numbers[tile]
        added = "" if between == AffineExpr() else f" + {self.affine(between)}"
        return f"(aligned{k}{added} + at{k})"


class RowEdge(IndexSpace):
    """The index space of the elements of unaligned rows that fill no whole vector."""

    def __init__(self, nest: TileNest, alignment: RowAlignment) -> None:
        self.whole_tile, self.elements = alignment.tile, alignment.elements
        edge = replace(alignment.tile, block=2 * alignment.elements, role="whole")
        tiles = tuple(edge if t is alignment.tile else t for t in nest.tiling.tiles)
        tiling = replace(nest.tiling, tiles=tiles)
        super().__init__(replace(nest, tiling=tiling), alignment.start.axes)
        self.edge = edge

    def index(self, tile: Tile) -> str:
        return super().index(tile) + ("e" if tile is self.edge else "")

    def mask(self, tile: Tile) -> str:
        return super().mask(tile) + ("e" if tile is self.edge else "")

    def is_masked(self, tile: Tile) -> bool:
        return tile is self.edge or super().is_masked(tile)

    def row_lines(self) -> Iterator[str]:
        """Return the lines that set the index and the mask of the edge.

        Of the instances that share a row, the first one has the edge.
        """
        k, n = self.tile_numbers[self.edge], self.elements
        extent = self.size(self.nest.extent(self.edge))
        index, mask = self.index(self.edge), self.mask(self.edge)
        yield f"edge{k} = {self.along(self.edge)}"
        yield f"{index} = edge{k} + tl.where(edge{k} < {n}, 0, shift{k} + inner{k} - {n})"
        yield f"{mask} = {index} < tl.where(edge{k} < {n}, shift{k}, {extent})"
        if self.whole_tile.role == "split":
            yield f"{mask} = {mask} & ({self.block_number(self.edge)} == 0)"
