"""BlockedContraction: a kernel whose products run by blocks of packed factors (Goto, 2008).

A block of each factor is computed into a buffer in the cache, in the order in which a microkernel
reads it. The microkernel adds the products of blocks to a tile. What depends on the sums is
computed from the tile, while it is in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.dims import Dim
from tofuse.ir.kernel import Kernel, Reduce
from tofuse.ir.nest import Nest
from tofuse.ir.schedule import BlockedSchedule

PACKED = "packed"  # the buffer that a factor's nest writes


@dataclass(frozen=True, eq=False)
class BlockNest:
    """A nest over a block of a kernel's iteration space.

    The block begins at `origins`, pairs of an axis and the size symbol for its first index. It has
    `counts` iterations, pairs of an axis and the size symbol for their number.
    """

    nest: Nest
    origins: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Factor:
    """The nest that packs blocks of one factor of a product.

    A block has lines (rows of the left factor, columns of the right one) of elements along the
    depth. With `line_major`, elements of a line are contiguous, else those of a step of depth.
    """

    pack: BlockNest
    line_major: bool


@dataclass(frozen=True, eq=False)
class BlockProduct:
    """A sum of products of two factors over the axes `depth`, outermost first.

    A block has `step` iterations of the axis `depth[blocked]` and all of those inside it.
    """

    total: Reduce
    depth: tuple[str, ...]
    blocked: int
    step: int
    left: Factor
    right: Factor


@dataclass(frozen=True, eq=False)
class BlockedContraction:
    """A scheduled kernel. `outer` are the axes of which a block has one iteration.

    The `epilogue` reads the tiles of the sums as buffers `tile0`, `tile1` and so on, whose rows are
    `tile_stride` elements apart. A thread's workspace holds the packed blocks, a block of `stage`
    that is not yet transposed, the tiles, and the scratch of the nests, at `offsets`.
    """

    kernel: Kernel
    schedule: BlockedSchedule
    outer: tuple[str, ...]
    products: tuple[BlockProduct, ...]
    epilogue: BlockNest
    tile_stride: int
    offsets: WorkspaceOffsets
    block_bytes: Dim

    @property
    def nests(self) -> tuple[BlockNest, ...]:
        """All nests: the left and the right factor of each product, and the epilogue."""
        packs = [f.pack for p in self.products for f in (p.left, p.right)]
        return (*packs, self.epilogue)

    def __repr__(self) -> str:
        """Return the text of the kernel, of its blocks, and of the loops in each block."""
        lines = [repr(self.kernel), f"blocked {self.kernel.name}: {self.schedule!r}"]
        for n, p in enumerate(self.products):
            inner = " ".join(p.depth[p.blocked :])
            lines.append(f"  product {n}: {p.total.name} by {p.step} of {inner}")
        for block in self.nests:
            lines += [f"  {line}" for line in repr(block.nest).splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True)
class WorkspaceOffsets:
    """Where the parts of a thread's workspace begin, in bytes."""

    left: int
    right: int
    stage: int
    tiles: tuple[int, ...]
    scratch: int
