"""An estimate of the registers of a GPU kernel, from the blocks that are alive at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tofuse.cost.gpu_machine import MAX_REGISTERS, REGISTERS
from tofuse.ir.kernel import (
    Definition,
    Gather,
    InRange,
    Iota,
    Load,
    Reduce,
    Stmt,
    Store,
    iteration_axes,
)
from tofuse.ir.tile import TileNest

FIXED_REGISTERS = 16  # addresses, counters and masks: "GPU cost model"


def estimate_registers(nest: TileNest, itemsizes: Mapping[str, int]) -> int:
    """Return the registers of a thread; `itemsizes` are those of the buffers.

    Registers hold loaded blocks until the next reduction or the end of the loop, and values that
    are used before and after a reduction. Other values are computed element by element.
    """
    blocks = _Blocks(nest)
    most = max((blocks.most_held((*p.prologue, *p.body), itemsizes) for p in nest.loops), default=0)
    available = REGISTERS // (32 * nest.tiling.warps)
    return min(MAX_REGISTERS, available, FIXED_REGISTERS + math.ceil(most))


class _Blocks:
    """The blocks that an instance of a launch holds, in registers of a thread."""

    def __init__(self, nest: TileNest) -> None:
        self.nest, self.threads = nest, 32 * nest.tiling.warps
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
            elif not isinstance(s, (Store, Iota, InRange)):
                held[s.name] = self._registers(s)
        return max(most, loaded)

    def _registers(self, s: Definition, itemsize: int | None = None) -> float:
        """Return the registers of a value; in the size of memory, if that is given."""
        nbytes = max(4, s.dtype.itemsize) if itemsize is None else itemsize
        return self._elements(s) * nbytes / 4 / self.threads

    def _elements(self, s: Definition) -> int:
        """Return the elements of a value in an instance; 0 inside of a matrix instruction."""
        if s.name in self.products:
            return 0
        axes = self.statement_axes[s] - frozenset(s.over if isinstance(s, Reduce) else ())
        tiles = (t for t in self.nest.tiling.tiles if not axes.isdisjoint(t.axes))
        return math.prod(t.block for t in tiles)
