"""Schedule: the order, tiles, threads and vectors of a kernel's loops."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tofuse.ir.kernel import Kernel
from tofuse.ir.types import DType


class ScheduledKernel(Protocol):
    """A kernel with its loops, or its launches on a GPU. Its `repr` is its text."""

    @property
    def kernel(self) -> Kernel: ...


@dataclass(frozen=True)
class Loop:
    """A loop over an axis. With `strip`, a loop over tiles of that many elements (strip-mining).

    A loop over tiles encloses another loop of the same axis, which runs inside one tile. `jam` is
    the factor of unroll-and-jam: so many iterations run at the same time, statement by statement.
    """

    axis: str
    strip: int = 0
    jam: int = 1

    def __repr__(self) -> str:
        name = f"{self.axis}/{self.strip}" if self.strip else self.axis
        return f"{name} jam {self.jam}" if self.jam > 1 else name


@dataclass(frozen=True)
class Schedule:
    """Loops, outermost first.

    The first `parallel` loops are distributed over threads. The last loop runs in vectors of
    `vector` lanes and is unrolled `unroll` times.
    """

    loops: tuple[Loop, ...]
    parallel: int
    vector: int
    unroll: int

    def __repr__(self) -> str:
        order = " ".join(map(repr, self.loops))
        return (
            f"order {order}; parallel {self.parallel}; vector {self.vector}; unroll {self.unroll}"
        )


class Microkernel(Enum):
    """The instruction that multiplies packed blocks. A step of the depth is 4 bytes of a line."""

    F32 = "f32"
    BF16_PAIRS = "bf16_pairs"  # AVX512-BF16
    BF16_TILES = "bf16_tiles"  # AMX

    @property
    def dtype(self) -> DType:
        """The dtype of the packed factors."""
        return DType.F32 if self is Microkernel.F32 else DType.BF16

    @property
    def step_elements(self) -> int:
        """The elements of a line in one step."""
        return 4 // self.dtype.itemsize

    @property
    def depth_multiple(self) -> int:
        """The number of elements of a line is rounded up to a multiple of this one, with zeros."""
        return 32 if self is Microkernel.BF16_TILES else self.step_elements


@dataclass(frozen=True)
class BlockedSchedule:
    """The tiles of the result of a kernel whose products run by blocks. A tile is a task.

    A tile has `tile_rows` iterations of the axis `rows` and `tile_columns` of the axis `columns`.
    The microkernel keeps the sums of `micro_rows` rows and `micro_columns` columns in registers.
    A block has the columns of a tile, up to `depth` steps of the microkernel, and the rows of
    `left_micropanels` micropanels.
    """

    rows: str
    tile_rows: int
    columns: str
    tile_columns: int
    microkernel: Microkernel
    micro_rows: int
    micro_columns: int
    depth: int
    left_micropanels: int

    def __repr__(self) -> str:
        tile = f"{self.rows}/{self.tile_rows} {self.columns}/{self.tile_columns}"
        size = f"{self.micro_rows} rows, {self.micro_columns} columns"
        block = f"{self.left_micropanels} micropanels, depth {self.depth}"
        return f"tiles {tile}; microkernel {self.microkernel.value} of {size}; blocks of {block}"


@dataclass(frozen=True)
class ChainSchedule:
    """The row blocks of a kernel of chained products. A block of rows is a task.

    A block has `tile_rows` iterations of the axis `rows`. `microkernels` has one of each product,
    with the rows and columns of sums that it keeps in registers.
    """

    rows: str
    tile_rows: int
    microkernels: tuple[tuple[Microkernel, int, int], ...]

    def __repr__(self) -> str:
        sizes = [f"{m.value} {rows}x{columns}" for m, rows, columns in self.microkernels]
        return f"rows {self.rows}/{self.tile_rows}; microkernels {', '.join(sizes)}"


@dataclass(frozen=True)
class Target:
    """The CPU to generate code for.

    - `lanes`: 4-byte lanes of the vectors to generate.
    - `l2_bytes`: L2 cache per core.
    - `fast_gemm`: whether our matrix products are faster than PyTorch's.
    - `native_lanes`: 4-byte lanes of a vector register of the processor.
    - `registers`: the number of its vector registers.
    - `bf16_dot`: whether the processor multiplies and adds pairs of bfloat16 (AVX512-BF16).
    - `bf16_tiles`: whether it multiplies tiles of bfloat16 (AMX), and the system permits it.
    - `native_f16`: whether the processor has arithmetic on float16, which PyTorch's products use.
    - `fma`: whether it has fused multiply-adds.
    - `saturating_casts`: whether casts of floats out of an integer's range saturate, as on ARM.
    """

    lanes: int
    threads: int
    l2_bytes: int = 1 << 20
    avx512: bool = False
    fast_gemm: bool = False
    native_lanes: int = 16
    registers: int = 32
    fma: bool = True
    saturating_casts: bool = False
    bf16_dot: bool = False
    bf16_tiles: bool = False
    native_f16: bool = False
