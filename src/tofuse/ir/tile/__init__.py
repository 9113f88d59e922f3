"""TileProgram: a kernel as GPU programs, each of which computes blocks of groups of axes."""

from tofuse.ir.tile.data import (
    Binary,
    GpuTarget,
    Partial,
    Pass,
    Tile,
    TileNest,
    TileProgram,
    Tiling,
    Workspace,
)

__all__ = [
    "Binary", "GpuTarget", "Partial", "Pass", "Tile", "TileNest", "TileProgram", "Tiling",
    "Workspace",
]  # fmt: skip
