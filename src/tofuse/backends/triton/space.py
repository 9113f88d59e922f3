"""A launch's index space: which variable indexes which axes, masks and shapes, as Triton text."""

from __future__ import annotations

from collections.abc import Iterable

from tofuse.ir.dims import Dim, known_multiple, product, size_hint, symbols_of
from tofuse.ir.kernel import AffineExpr, Gather, InRange, Iota, Load, Stmt, Store, Uniform
from tofuse.ir.tile import Tile, TileNest

LIMIT = 2**31 - 2**16  # indices below fit 32 bits, with room for a block past the end


class Space:
    """`tiles` are those that are a dimension of the program's blocks; the others are one index."""

    def __init__(self, nest: TileNest) -> None:
        self.nest = nest
        everything = nest.tiling.tiles
        self.tiles = tuple(t for t in everything if t.block > 1 or t.role != "grid")
        self.order = {t: k for k, t in enumerate(everything)}
        self.of = {a: t for t in everything for a in t.axes}
        self.wide = _wide(nest)

    @property
    def rank(self) -> int:
        return len(self.tiles)

    def number(self, tile: Tile) -> int:
        return self.tiles.index(tile)

    # -- names -----------------------------------------------------------------------------------

    def program(self, tile: Tile) -> str:
        return f"b{self.order[tile]}"

    def index(self, tile: Tile) -> str:
        return f"g{self.order[tile]}"

    def start(self, tile: Tile) -> str:
        return f"o{self.order[tile]}"

    def mask(self, tile: Tile) -> str:
        return f"m{self.order[tile]}"

    # -- tiles -----------------------------------------------------------------------------------

    def masked(self, tile: Tile) -> bool:
        extent = self.nest.extent(tile)
        if tile not in self.tiles:
            return False
        return extent == 0 or not known_multiple(extent, tile.block)

    def masks(self, axes: Iterable[str]) -> list[str]:
        tiles = dict.fromkeys(self.of[a] for a in sorted(axes))
        return [self.mask(t) for t in self.tiles if t in tiles and self.masked(t)]

    def blocks(self, tile: Tile) -> str:
        extent = self.nest.extent(tile)
        if isinstance(extent, int):
            return str(-(-extent // tile.block))
        return f"(({self.dim(extent)} + {tile.block - 1}) // {tile.block})"

    def arange(self, tile: Tile) -> str:
        """All indices of a block, along its own dimension."""
        if tile not in self.tiles:
            return self.start(tile)
        k = self.number(tile)
        along = ", ".join(":" if d == k else "None" for d in range(self.rank))
        line = f"tl.arange(0, {tile.block})" + (f"[{along}]" if self.rank > 1 else "")
        return f"{self.start(tile)} + {line}"

    def shape(self, axes: Iterable[str]) -> str:
        """The shape of a value that depends on these axes."""
        tiles = {self.of[a] for a in axes}
        return f"[{', '.join(str(t.block) if t in tiles else '1' for t in self.tiles)}]"

    def broadcast(self, text: str, shape: str) -> str:
        return f"tl.broadcast_to({text}, {shape})" if self.rank else text

    def spread(self, axes: Iterable[str]) -> bool:
        """Whether a value that depends on these axes is a block, not a number."""
        return any(self.of[a] in self.tiles for a in axes)

    # -- numbers ---------------------------------------------------------------------------------

    def dim(self, dim: Dim) -> str:
        """A size as an expression of the size symbols."""
        if isinstance(dim, int):
            return str(dim)
        terms = ["*".join([str(c), *symbols]) for symbols, c in dim.terms]
        return f"({' + '.join(terms)})"

    def affine(self, index: AffineExpr) -> str:
        """An affine function of the axes, with as few divisions as its strides allow."""
        terms = []
        for tile in self.nest.tiling.tiles:
            for part, step in self.parts(tile, index):
                terms.append(part if step == 1 else f"{part} * {self.dim(step)}")
        if index.const != 0 or not terms:
            terms.append(self.dim(index.const))
        return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]

    def parts(self, tile: Tile, index: AffineExpr) -> list[tuple[str, Dim]]:
        """Pieces of a tile's index, each with its factor; runs of axes that follow one another in
        memory are one piece."""
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
                text = f"({text} // {self.dim(inner)})"
            if first > 0:
                text = f"({text} % {self.dim(span)})"
            found.append((text, step))
        return found[::-1]


def _wide(nest: TileNest) -> bool:
    """Whether indices need 64 bits."""
    kernel = nest.kernel
    if any(symbols_of(a.extent) for a in kernel.axes):
        return True
    extents = {a.name: size_hint(a.extent) for a in kernel.axes}
    most = max((size_hint(nest.extent(t)) for t in nest.tiling.tiles), default=0)
    for s in kernel.body:
        for index, more in _addresses(s):
            span = sum(abs(size_hint(c)) * max(0, extents[a] - 1) for a, c in index.terms)
            if symbols_of(index.const):
                return True
            most = max(most, span + abs(size_hint(index.const)) + more)
    for p in nest.partials.values():
        span = sum(size_hint(c) * extents[a] for a, c in p.index.terms)
        most = max(most, span + size_hint(p.step) * nest.tiling.splits)
    return most >= LIMIT


def _addresses(stmt: Stmt) -> list[tuple[AffineExpr, int]]:
    match stmt:
        case Load() | Store() | Iota() | InRange():
            return [(stmt.index, 0)]
        case Gather():
            return [(stmt.index, abs(size_hint(stmt.stride)) * size_hint(stmt.extent))]
        case Uniform():
            return [(stmt.col, 0), (stmt.row * stmt.extent, 0)]
        case _:
            return []
