"""TileProgram: a kernel as Triton program instances, each of which computes a block per tile."""

from tofuse.ir.tile.data import (
    GpuBinary,
    GpuTarget,
    Partial,
    Tile,
    TileLoop,
    TileNest,
    TileProgram,
    Tiling,
    Workspace,
)

__all__ = [
    "GpuBinary", "GpuTarget", "Partial", "TileLoop", "Tile", "TileNest", "TileProgram", "Tiling",
    "Workspace",
]  # fmt: skip
