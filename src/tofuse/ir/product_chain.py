"""ProductChain: a kernel of products that read one another's results, by blocks of rows.

For each block of rows the stages run in order. The nests of a stage compute the left factors of its
products and the kernel's results. A product multiplies the block's rows with all columns of a right
factor, which was packed before. All of these stay in the caches. For attention, the first stage
has the queries, the second one the softmax of a block of scores, and the third one the results.
Two products in one kernel are also called back-to-back or fused products (for example in CUTLASS).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.ir.blocked import Factor
from tofuse.ir.kernel import Kernel
from tofuse.ir.mask import Mask
from tofuse.ir.nest import Nest
from tofuse.ir.schedule import ChainSchedule

UNTRANSPOSED, SCRATCH = "untransposed", "scratch"


def left_buffer(product: int) -> str:
    """Return the buffer that holds a block of rows of the left factor of a product."""
    return f"left{product}"


def right_panel(product: int) -> str:
    """Return the part of the workspace that holds the packed right factor of a product."""
    return f"right{product}"


def row_buffer(value: str) -> str:
    """Return the buffer that holds one number per row for later stages."""
    return f"rows.{value}"


@dataclass(frozen=True, eq=False)
class ChainProduct:
    """The products whose sum over the axes `depth`, outermost first, is the value `total`.

    The rows of the left factor are in memory one after the other. A row has `steps` steps of the
    microkernel. `right` packs some columns of the right factor: `columns` is their axis. `around`
    are the axes outside of a block of rows that the right factor has.
    """

    number: int
    total: str
    columns: str
    depth: tuple[str, ...]
    steps: int
    right: Factor
    around: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ChainStage:
    """Nests over a block of rows, then the products whose left factors they have computed."""

    nests: tuple[Nest, ...]
    products: tuple[ChainProduct, ...]


@dataclass(frozen=True, eq=False)
class ProductChain:
    """A scheduled kernel.

    A block of rows has one iteration of each of the axes `outer`. `offsets` are where the parts of
    a thread's workspace begin, in bytes. `block_bytes` is its size. `masks` are of one axis: a
    block computes the range from the first to the last iteration that no mask excludes. `computed`
    is the share of all blocks that they leave, as far as it is known.
    """

    kernel: Kernel
    schedule: ChainSchedule
    outer: tuple[str, ...]
    stages: tuple[ChainStage, ...]
    offsets: Mapping[str, int]
    block_bytes: int
    masks: tuple[Mask, ...] = ()
    computed: float = 1.0

    @property
    def masked_axis(self) -> str | None:
        """The axis whose iterations masks exclude, if there are masks."""
        return self.masks[0].axis if self.masks else None

    @property
    def products(self) -> tuple[ChainProduct, ...]:
        """All products, in order of their numbers."""
        return tuple(sorted((p for s in self.stages for p in s.products), key=lambda p: p.number))

    @property
    def nests(self) -> tuple[Nest, ...]:
        """All nests: those of each stage, and those of the right factors of its products."""
        return tuple(
            n for s in self.stages for n in (*s.nests, *(p.right.pack for p in s.products))
        )

    def __repr__(self) -> str:
        """Return the text of the kernel, its stages and its nests: `parse_chain` accepts it."""
        offsets = " ".join(f"{name} {offset}" for name, offset in self.offsets.items())
        head = f"chain {self.kernel.name}: {self.schedule!r}"
        lines = [repr(self.kernel), f"{head}; workspace {self.block_bytes}: {offsets}"]
        if self.outer:
            lines.append(f"  outer {','.join(self.outer)}")
        lines += [f"  mask {mask!r}" for mask in self.masks]
        if self.masks:
            lines.append(f"  computed {self.computed!r} of {self.masked_axis}")
        for stage in self.stages:
            lines.append(f"  stage of {len(stage.nests)} nests")
            lines += map(_show_product, stage.products)
        return "\n".join([*lines, *map(repr, self.nests)])


def _show_product(p: ChainProduct) -> str:
    order = "lines" if p.right.line_major else "steps"
    around = f"; around {','.join(p.around)}" if p.around else ""
    depth = f"depth {','.join(p.depth)}; steps {p.steps}"
    return (
        f"    product {p.number} {p.total}: columns {p.columns}; {depth}; right by {order}{around}"
    )
