"""BlockedContraction: a kernel whose products run by blocks of packed factors.

The scheme is that of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication"
(2008). A nest computes a block of a factor and packs it in the order in which a microkernel reads
it. The microkernel adds the products of two blocks to a tile of the sums. A last nest, the
epilogue, computes the kernel's results from the tile. All of these stay in the caches.
"""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.kernel import Kernel
from tofuse.ir.nest import Nest
from tofuse.ir.schedule import BlockedSchedule

PACKED_BUFFER = "packed"


def first_index(axis: str) -> str:
    """Return the size symbol of a block's nest for the first index of the block along an axis."""
    return f"{axis}_first"


def iterations(axis: str) -> str:
    """Return the size symbol of a block's nest for the number of its iterations of an axis."""
    return f"{axis}_count"


def tile_buffer(product: int) -> str:
    """Return the buffer from which the epilogue reads the tile of a product."""
    return f"tile{product}"


@dataclass(frozen=True, eq=False)
class Factor:
    """The nest that packs a block of one factor of a product into the buffer PACKED_BUFFER.

    The lines of a block are rows of the left factor, or columns of the right one. If they are
    `line_major`, the elements of a line are contiguous. Otherwise, for each step of the depth, the
    elements of all lines are.
    """

    pack: Nest
    line_major: bool


@dataclass(frozen=True, eq=False)
class BlockProduct:
    """The products whose sum over the axes `depth`, outermost first, is the value `total`.

    A block has at most `step` iterations of the axis `depth[blocked]`, one of each axis before it,
    and all of each axis after it.
    """

    total: str
    depth: tuple[str, ...]
    blocked: int
    step: int
    left: Factor
    right: Factor


@dataclass(frozen=True)
class WorkspaceOffsets:
    """Where the parts of a thread's workspace begin, in bytes.

    They are the packed blocks of both factors, a block of the right factor before it is transposed,
    the tile of each product, and the scratch of the nests.
    """

    left: int
    right: int
    untransposed: int
    tiles: tuple[int, ...]
    scratch: int

    def __repr__(self) -> str:
        tiles = ",".join(map(str, self.tiles))
        factors = f"left {self.left} right {self.right} untransposed {self.untransposed}"
        return f"{factors} tiles {tiles} scratch {self.scratch}"


@dataclass(frozen=True, eq=False)
class BlockedContraction:
    """A scheduled kernel.

    A tile has one iteration of each of the axes `outer`. Its rows are `tile_stride` float32
    elements apart. `block_bytes` is the workspace of one thread.
    """

    kernel: Kernel
    schedule: BlockedSchedule
    outer: tuple[str, ...]
    products: tuple[BlockProduct, ...]
    epilogue: Nest
    tile_stride: int
    offsets: WorkspaceOffsets
    block_bytes: int

    @property
    def nests(self) -> tuple[Nest, ...]:
        """All nests: those of the left and the right factor of each product, and the epilogue."""
        packs = [f.pack for p in self.products for f in (p.left, p.right)]
        return (*packs, self.epilogue)

    def __repr__(self) -> str:
        """Return the text of the kernel, its blocks and its nests: `parse_blocked` accepts it."""
        workspace = f"workspace {self.block_bytes}: {self.offsets!r}"
        lines = [repr(self.kernel), f"blocked {self.kernel.name}: {self.schedule!r}; {workspace}"]
        outer = f" outer {','.join(self.outer)}" if self.outer else ""
        lines.append(f"  tile stride {self.tile_stride}{outer}")
        lines += map(_show_product, self.products)
        return "\n".join([*lines, *map(repr, self.nests)])


def _show_product(p: BlockProduct) -> str:
    left, right = ("lines" if f.line_major else "steps" for f in (p.left, p.right))
    depth = f"depth {','.join(p.depth)} block {p.step} of {p.depth[p.blocked]}"
    return f"  product {p.total}: {depth}; left by {left}; right by {right}"
