"""The index space of a launch: the variables, masks and shapes of its tiles, as Triton text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim, evaluate, known_multiple, product, symbols_of
from tofuse.ir.kernel import Gather, InRange, Iota, Load, Stmt, Store, Uniform
from tofuse.ir.tile import Tile, TileNest

MAX_INT32_INDEX = 2**31 - 2**16  # leaves room for a block past the end


class IndexSpace:
    """The tiles of a launch; `tiles` are its blocks' dimensions in order, others have one index.

    A launch with a matrix product has three spaces, each of two tiles. `renamed` is the tile of the
    depth in the space of the right factor, where it is the first dimension: its index has a name of
    its own. If rows begin at different places, `row_axes` are the axes of the rows.
    """

    def __init__(
        self,
        nest: TileNest,
        row_axes: Iterable[str] = (),
        tiles: tuple[Tile, ...] | None = None,
        renamed: Tile | None = None,
    ) -> None:
        self.nest, self.renamed = nest, renamed
        all_tiles = nest.tiling.tiles
        if tiles is None:
            tiles = tuple(t for t in all_tiles if t.block > 1 or t.role != "grid")
        self.tiles = tiles
        self.tile_numbers = {t: k for k, t in enumerate(all_tiles)}
        self.tile_of = {a: t for t in all_tiles for a in t.axes}
        self.row_tiles = {self.tile_of[a] for a in row_axes}
        self.needs_int64 = _needs_int64(nest)

    @property
    def rank(self) -> int:
        return len(self.tiles)

    # -- names -----------------------------------------------------------------------------------

    def block_number(self, tile: Tile) -> str:
        """Return the variable of this instance's block number in a tile."""
        return f"b{self.tile_numbers[tile]}"

    def index(self, tile: Tile) -> str:
        """Return the variable of a tile's indices in the current block."""
        return f"g{self.tile_numbers[tile]}{'t' if tile is self.renamed else ''}"

    def start(self, tile: Tile) -> str:
        """Return the variable of the first index of the current block."""
        return f"o{self.tile_numbers[tile]}"

    def mask(self, tile: Tile) -> str:
        """Return the variable that masks indices within a tile's extent."""
        return f"m{self.tile_numbers[tile]}{'t' if tile is self.renamed else ''}"

    # -- tiles -----------------------------------------------------------------------------------

    def is_masked(self, tile: Tile) -> bool:
        """Return whether a tile's last block may be partial."""
        extent = self.nest.extent(tile)
        if tile not in self.tiles:
            return False
        return extent == 0 or not known_multiple(extent, tile.block)

    def masks(self, axes: Iterable[str]) -> list[str]:
        """Return the mask variables of the tiles of these axes."""
        tiles = self.tiles_of(axes)
        return [self.mask(t) for t in self.tiles if t in tiles and self.is_masked(t)]

    def block_count(self, tile: Tile) -> str:
        """Return the number of blocks of a tile, as an expression."""
        extent = self.nest.extent(tile)
        if isinstance(extent, int):
            return str(-(-extent // tile.block))
        return f"(({self.size(extent)} + {tile.block - 1}) // {tile.block})"

    def arange(self, tile: Tile) -> str:
        """Return all indices of a block along its dimension."""
        if tile not in self.tiles:
            return self.start(tile)
        return f"{self.start(tile)} + {self.along(tile)}"

    def along(self, tile: Tile) -> str:
        """Return the numbers of a block's elements, along its dimension."""
        k = self.tiles.index(tile)
        places = ", ".join(":" if d == k else "None" for d in range(self.rank))
        return f"tl.arange(0, {tile.block})" + (f"[{places}]" if self.rank > 1 else "")

    def origin(self, start: str) -> str:
        """Return a number from which indices are counted, in the width that they need."""
        return f"tl.full([], 0, tl.int64) + {start}" if self.needs_int64 else start

    def index_lines(self, tile: Tile, start: str) -> Iterator[str]:
        """Return the lines that set the index and the mask of a block that begins at `start`."""
        yield f"{self.start(tile)} = {self.origin(start)}"
        yield f"{self.index(tile)} = {self.arange(tile)}"
        if self.is_masked(tile):
            yield f"{self.mask(tile)} = {self.index(tile)} < {self.size(self.nest.extent(tile))}"

    def shape(self, axes: Iterable[str]) -> str:
        """Return the shape of a value that depends on these axes."""
        tiles = self.tiles_of(axes)
        return f"[{', '.join(str(t.block) if t in tiles else '1' for t in self.tiles)}]"

    def broadcast(self, text: str, shape: str) -> str:
        return f"tl.broadcast_to({text}, {shape})" if self.rank else text

    def is_block(self, axes: Iterable[str]) -> bool:
        """Return whether a value that depends on these axes is a block, not a scalar."""
        return any(t in self.tiles for t in self.tiles_of(axes))

    def tiles_of(self, axes: Iterable[str]) -> set[Tile]:
        """Return the tiles that a value depends on, which depends on these axes."""
        tiles = {self.tile_of[a] for a in axes}
        if self.row_tiles and self.nest.tiling.tiles[-1] in tiles:
            return tiles | self.row_tiles
        return tiles

    # -- numbers ---------------------------------------------------------------------------------

    def row_lines(self) -> Iterator[str]:
        """Return the lines that divide rows, where they are."""
        yield from ()

    def size(self, dim: Dim) -> str:
        """Return a size as an expression of the size symbols."""
        if isinstance(dim, int):
            return str(dim)
        terms = ["*".join([str(c), *symbols]) for symbols, c in dim.terms]
        return f"({' + '.join(terms)})"

    def affine(self, index: AffineExpr) -> str:
        """Return an affine expression of the axes, with as few divisions as its strides allow."""
        terms = []
        for tile in self.nest.tiling.tiles:
            for term, step in self.index_terms(tile, index):
                terms.append(term if step == 1 else f"{term} * {self.size(step)}")
        if index.const != 0 or not terms:
            terms.append(self.size(index.const))
        return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]

    def address(self, index: AffineExpr) -> str:
        """Return the place of an element in its buffer."""
        return self.affine(index)

    def index_terms(self, tile: Tile, index: AffineExpr) -> list[tuple[str, Dim]]:
        """Return the terms of a tile's index with their factors.

        Consecutive axes that are contiguous in memory are one term.
        """
        found: list[tuple[str, Dim]] = []
        k = len(tile.axes)
        while k > 0:
            last = first = k - 1
            step = index.coefficient(tile.axes[last])
            span = self.nest.kernel.extent(tile.axes[last])
            while first > 0 and index.coefficient(tile.axes[first - 1]) == product((step, span)):
                first -= 1
                span = product((span, self.nest.kernel.extent(tile.axes[first])))
            k = first
            if step == 0:
                continue
            inner = product(self.nest.kernel.extent(a) for a in tile.axes[last + 1 :])
            text = self.index(tile)
            if inner != 1:
                text = f"({text} // {self.size(inner)})"
            if first > 0:
                text = f"({text} % {self.size(span)})"
            found.append((text, step))
        return found[::-1]


def _needs_int64(nest: TileNest) -> bool:
    """Return whether indices need 64 bits."""
    kernel = nest.kernel

    def bound(dim: Dim) -> int:
        if isinstance(dim, int):
            return abs(dim)
        known = nest.bounds.keys() >= set(symbols_of(dim))
        return abs(evaluate(dim, nest.bounds)) if known else MAX_INT32_INDEX

    extents = {a.name: bound(a.extent) for a in kernel.axes}
    largest = max((bound(nest.extent(t)) for t in nest.tiling.tiles), default=0)
    for s in kernel.body:
        for index, added in _addresses(s):
            span = sum(bound(c) * max(0, extents[a] - 1) for a, c in index.terms)
            largest = max(largest, span + bound(index.const) + bound(added))
    for p in nest.partials.values():
        span = sum(bound(c) * extents[a] for a, c in p.index.terms)
        largest = max(largest, span + bound(p.step) * nest.tiling.splits)
    return largest >= MAX_INT32_INDEX


def _addresses(stmt: Stmt) -> list[tuple[AffineExpr, Dim]]:
    """Return the affine expressions of a statement, each with what a gather may add."""
    match stmt:
        case Load() | Store() | Iota() | InRange():
            return [(stmt.index, 0)]
        case Gather():
            return [(stmt.index, product((stmt.stride, stmt.extent)))]
        case Uniform():
            return [(stmt.col, 0), (stmt.row * stmt.extent, 0)]
        case _:
            return []
