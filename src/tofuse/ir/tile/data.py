"""Tiles: a kernel as programs of a GPU, each of which computes blocks of groups of axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tofuse.ir.dims import Dim, evaluate, product, show_dim
from tofuse.ir.kernel import Affine, Kernel, Reduce, Stmt, show_stmt
from tofuse.ir.types import DType


@dataclass(frozen=True)
class Tile:
    """Axes that are numbered as one, outermost first, in blocks of `block`.

    role "grid": a block a program; "whole": one block holds all, in every program; "loop": each
    program runs over all blocks; "share": over the blocks that are its share.
    """

    axes: tuple[str, ...]
    block: int
    role: str

    def __repr__(self) -> str:
        return f"{self.role} {','.join(self.axes)}/{self.block}"


@dataclass(frozen=True)
class Tiling:
    """The tiles, the contiguous one last; warps a program; and into how many shares to divide."""

    tiles: tuple[Tile, ...]
    warps: int
    shares: int = 1

    def __repr__(self) -> str:
        parts = [*map(repr, self.tiles), f"warps {self.warps}"]
        return "; ".join(parts + ([f"shares {self.shares}"] if self.shares > 1 else []))


@dataclass(frozen=True)
class GpuTarget:
    """What to generate for: multiprocessors, and the compute capability, such as 90."""

    multiprocessors: int = 132
    capability: int = 90


@dataclass(frozen=True)
class Binary:
    """A kernel in machine code: its name in there, threads and bytes of shared memory a program."""

    code: bytes
    name: str
    threads: int
    shared: int
    text: str  # the assembly it was made from


@dataclass(frozen=True)
class Partial:
    """Where each program leaves its part of a reduction; argmax and argmin leave two."""

    buffer: str
    index: Affine
    step: Dim  # from one share's part to the next's
    best: str | None = None


@dataclass(frozen=True, eq=False)
class Pass:
    """Statements in place, then those in the loop over its tile, with the reductions they end."""

    straight: tuple[Stmt, ...]
    looped: tuple[Stmt, ...] = ()
    reductions: tuple[Reduce, ...] = ()


@dataclass(frozen=True, eq=False)
class TileNest:
    """One launch."""

    kernel: Kernel
    tiling: Tiling
    passes: tuple[Pass, ...]
    partials: dict[str, Partial] = field(default_factory=dict)

    def extent(self, tile: Tile) -> Dim:
        return product(self.kernel.extent(a) for a in tile.axes)

    def programs(self, sizes: Mapping[str, int]) -> int:
        """How many programs run."""
        count = self.tiling.shares
        for t in self.tiling.tiles:
            if t.role == "grid":
                count *= -(-evaluate(self.extent(t), sizes) // t.block)
        return count

    @property
    def moving(self) -> Tile | None:
        """The tile that passes loop over."""
        return next((t for t in self.tiling.tiles if t.role in ("loop", "share")), None)


@dataclass(frozen=True)
class Workspace:
    """Memory between two launches of one program."""

    name: str
    dtype: DType
    elements: Dim


@dataclass(frozen=True, eq=False)
class TileProgram:
    """What a region becomes: one launch, or several with workspace between them."""

    kernel: Kernel
    nests: tuple[TileNest, ...]
    workspaces: tuple[Workspace, ...]

    def __repr__(self) -> str:
        return show_program(self)


def show_program(program: TileProgram) -> str:
    """Text of the launches, for people."""
    lines = [
        f"workspace {w.name}: {w.dtype.value}[{show_dim(w.elements)}]" for w in program.workspaces
    ]
    for nest in program.nests:
        lines.append(f"launch {nest.kernel.name}: {nest.tiling!r}")
        for part in nest.passes:
            lines += [f"  {show_stmt(s)}" for s in part.straight]
            if part.looped:
                lines.append(f"  for {nest.moving!r}:")
                lines += [f"    {show_stmt(s)}" for s in part.looped]
        for name, p in nest.partials.items():
            lines.append(f"  leave {name} in {p.buffer}[{p.index!r} + {show_dim(p.step)}*share]")
    return "\n".join(lines)
