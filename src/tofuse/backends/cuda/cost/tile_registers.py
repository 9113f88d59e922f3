"""An estimate of the registers of a GPU kernel, from the blocks that are alive at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from tofuse.backends.cuda.cost.gpu_machine import MAX_REGISTERS, REGISTERS
from tofuse.cost.thresholds import WIDEST_THREAD_ACCESS_BYTES
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import (
    WRITES,
    Definition,
    Gather,
    InRange,
    Iota,
    Load,
    Reduce,
    Stmt,
    iteration_axes,
)
from tofuse.ir.tile import Tile, TileNest

FIXED_REGISTERS = 16  # addresses, counters and masks: "GPU cost model"


def estimate_registers(nest: TileNest, itemsizes: Mapping[str, int]) -> int:
    """Return the registers of a thread; `itemsizes` are those of the buffers.

    Registers hold loaded blocks until the next reduction or the end of the loop, and values that
    are used before and after a reduction. Other values are computed element by element.
    """
    blocks = _Blocks(nest, vector_elements(itemsizes))
    most = max((blocks.most_held((*p.prologue, *p.body), itemsizes) for p in nest.loops), default=0)
    available = REGISTERS // (32 * nest.tiling.warps)
    return min(MAX_REGISTERS, available, FIXED_REGISTERS + math.ceil(most))


def vector_elements(itemsizes: Mapping[str, int]) -> int:
    """Return the neighbouring elements that a thread computes: those of an access of 16 bytes."""
    return WIDEST_THREAD_ACCESS_BYTES // min([4, *itemsizes.values()])


def equal_neighbours(nest: TileNest, tile: Tile, axes: Collection[str]) -> int:
    """Return how many neighbouring elements of a block have equal values, by their axes."""
    if set(axes).isdisjoint(tile.axes):
        return 1
    inner = itertools.takewhile(lambda a: a not in axes, reversed(tile.axes))
    extents = (size_hint(nest.kernel.extent(a)) for a in inner)
    return max(1, min(math.prod(extents), tile.block))


class _Blocks:
    """The blocks that an instance of a launch holds, in registers of a thread."""

    def __init__(self, nest: TileNest, vector: int) -> None:
        self.nest, self.threads, self.vector = nest, 32 * nest.tiling.warps, vector
        _, self.statement_axes = iteration_axes(nest.kernel)
        self.products = {c.product for c in nest.contractions}

    def most_held(self, statements: Sequence[Stmt], itemsizes: Mapping[str, int]) -> float:
        """Return the most registers that statements, one after another, hold at a time."""
        last = {name: k for k, s in enumerate(statements) for name in s.uses}
        held: dict[str, float] = {}
        loaded = most = 0.0
        for k, s in enumerate(statements):
            if isinstance(s, (Load, Gather)):
                loaded += self._registers(s, itemsizes[s.buffer])
                held[s.name] = self._registers(s)
            elif isinstance(s, Reduce):
                alive = sum(n for name, n in held.items() if last.get(name, -1) > k)
                most = max(most, loaded, alive + self._registers(s))
                loaded, held[s.name] = 0.0, self._registers(s)
            elif not isinstance(s, (*WRITES, Iota, InRange)):
                held[s.name] = self._registers(s)
        return max(most, loaded)

    def _registers(self, s: Definition, itemsize: int | None = None) -> float:
        """Return the registers of a value; in the size of memory, if that is given."""
        nbytes = max(4, s.dtype.itemsize) if itemsize is None else itemsize
        return self._elements(s) * nbytes / 4 / self.threads

    def _elements(self, s: Definition) -> float:
        """Return the elements that an instance holds; 0 inside of a matrix instruction."""
        if s.name in self.products:
            return 0
        axes = self.statement_axes[s] - frozenset(s.over if isinstance(s, Reduce) else ())
        tiles = (t for t in self.nest.tiling.tiles if not axes.isdisjoint(t.axes))
        return math.prod(self._distinct(t, axes) for t in tiles)

    def _distinct(self, tile: Tile, axes: Collection[str]) -> float:
        """Return the elements of a block that threads hold, each once for a thread."""
        if (equal := equal_neighbours(self.nest, tile, axes)) > 1:
            return tile.block / min(self.vector, equal)
        own = itertools.takewhile(lambda a: a in axes, reversed(tile.axes))
        period = math.prod(size_hint(self.nest.kernel.extent(a)) for a in own)
        together = self.vector * self.threads  # the next ones of a thread repeat whole rows
        repeats = period < tile.block and len(tile.axes) > 1 and together % max(1, period) == 0
        return min(tile.block, together) if repeats else tile.block
