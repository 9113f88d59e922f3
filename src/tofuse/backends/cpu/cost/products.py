"""Cost of a float32 matrix product: by PyTorch's library, by our packed kernel, without packing.

Each kernel's time is that of B, which is packed or read once, and that of the arithmetic. With few
rows the first is larger, whatever the kernel. Measured in docs/measurements.md, "Products of few
rows".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tofuse.cost.machine import Machine
from tofuse.cost.target_costs import RowLimits
from tofuse.cost.thresholds import (
    DIRECT_ELEMENT_NS,
    DIRECT_RATE,
    DIRECT_UNALIGNED,
    KERNEL_ROWS_BF16,
    KERNEL_ROWS_F16,
    KERNEL_ROWS_F32,
    KERNEL_ROWS_F32_AVX2,
    LIBRARY_CACHED_ELEMENT_NS,
    LIBRARY_ELEMENT_NS,
    LIBRARY_RATE,
    MICROPANEL_COLUMNS,
    MIN_BLOCKED_FLOAT32_PRODUCT_ROWS,
    MIN_BLOCKED_PRODUCT_EXTENT,
    MIN_PRODUCT_GAIN,
    PACKED_ELEMENT_NS,
    PACKED_RATE,
    PRODUCT_CALL_US,
    STREAMED_ROWS,
)
from tofuse.ir.schedule import Target
from tofuse.ir.types import DType

FLOAT_BYTES, LINE_BYTES = 4, 64
AVX2_LANES = 8  # floats in a register; other processors were not measured


@dataclass(frozen=True)
class ProductSize:
    """`count` products of [rows, depth] by [depth, columns]."""

    rows: int
    columns: int
    depth: int
    count: int = 1

    @property
    def elements(self) -> int:
        """The elements of B."""
        return self.columns * self.depth * self.count

    def cost_us(self, element_ns: float, rate: float, threads: int) -> float:
        """Return the time, of so many nanoseconds an element of B and FLOPs a nanosecond."""
        return self.elements * (element_ns + 2 * self.rows / rate) / threads / 1e3


@dataclass(frozen=True)
class ProductCosts:
    """Microseconds of each way to compute a product."""

    library: float
    packed: float
    direct: float


def product_costs(size: ProductSize, machine: Machine, library_avx512: bool) -> ProductCosts:
    """Return what a product costs; `library_avx512`: PyTorch's library uses AVX-512 here.

    Without it, the library packs B even for two rows, and has half the arithmetic. The machine's
    FLOPs are then those of our kernel, twice the library's, so they are halved. The library packs
    a B that stays in the L2 cache for less than our kernel needs to read it. Vectors of our kernel
    cross cache lines if the rows of B are no whole lines.
    """
    flops = machine.flops if library_avx512 else machine.flops / 2
    streams = size.rows < (STREAMED_ROWS if library_avx512 else 2)
    element_ns = DIRECT_ELEMENT_NS if streams else LIBRARY_ELEMENT_NS
    if FLOAT_BYTES * size.elements <= machine.l2_bytes:
        element_ns = min(element_ns, LIBRARY_CACHED_ELEMENT_NS)
    crossing = DIRECT_UNALIGNED if size.depth * FLOAT_BYTES % LINE_BYTES else 1.0
    rate = flops * LIBRARY_RATE / (1 if library_avx512 else 2)
    threads = machine.threads
    whole = replace(size, columns=-(-size.columns // MICROPANEL_COLUMNS) * MICROPANEL_COLUMNS)
    return ProductCosts(
        size.cost_us(element_ns, rate, threads),
        whole.cost_us(PACKED_ELEMENT_NS, flops * PACKED_RATE, threads) + PRODUCT_CALL_US,
        crossing * size.cost_us(DIRECT_ELEMENT_NS, flops * DIRECT_RATE, threads) + PRODUCT_CALL_US,
    )


def is_faster(own_us: float, library_us: float) -> bool:
    """Return whether our kernel is predicted to be faster by a margin."""
    return own_us * MIN_PRODUCT_GAIN < library_us


def streamed_rows(target: Target) -> Mapping[DType, RowLimits]:
    """Return the rows that our kernels multiply by a weight in memory faster than the library.

    A call of the library for bfloat16 takes 15 us, however small the weight. Its float32 products
    pack the weight from two rows on where they use AVX2.
    """
    if target.lanes < AVX2_LANES:
        return {}
    found: dict[DType, RowLimits] = {DType.BF16: KERNEL_ROWS_BF16, DType.F16: KERNEL_ROWS_F16}
    if _converts_one_by_one(DType.BF16, target):
        found[DType.BF16] = KERNEL_ROWS_F16
    if target.fast_gemm or not target.avx512:
        found[DType.F32] = KERNEL_ROWS_F32 if target.fast_gemm else KERNEL_ROWS_F32_AVX2
    return found


def tiled_rows(target: Target) -> Mapping[DType, int]:
    """Return the rows from which blocks of tiles multiply a decoded weight faster than a nest."""
    return {DType.BF16: MIN_BLOCKED_PRODUCT_EXTENT} if target.bf16_tiles else {}


def blocked_dtypes(target: Target) -> frozenset[DType]:
    """Return the dtypes of products that blocks compute as fast as the library does."""
    if not target.fma:
        return frozenset()
    has_bf16 = target.bf16_dot or target.bf16_tiles or _converts_one_by_one(DType.BF16, target)
    found = {DType.F32: True, DType.BF16: has_bf16}
    found[DType.F16] = _converts_one_by_one(DType.F16, target)
    return frozenset(dtype for dtype, is_fast in found.items() if is_fast)


def blocked_rows(target: Target) -> Mapping[DType, int]:
    """Return the rows from which blocks compute a product faster than the library does.

    PyTorch's products of float32 are as fast as blocks, which save a pass over their results. Its
    products of bfloat16 by tiles (AMX) pack nothing, and are faster as often as blocks are.
    """
    dtypes = (dtype for dtype in (DType.BF16, DType.F16) if _converts_one_by_one(dtype, target))
    found = dict.fromkeys(dtypes, MIN_BLOCKED_PRODUCT_EXTENT)
    if target.fma and target.lanes >= AVX2_LANES:
        found[DType.F32] = MIN_BLOCKED_FLOAT32_PRODUCT_ROWS
    return found


def _converts_one_by_one(dtype: DType, target: Target) -> bool:
    """Whether PyTorch's products convert each element of a dtype by itself.

    They do on x86: of float16 if the processor has no arithmetic on it, of bfloat16 if it has no
    AVX-512.
    """
    if target.lanes < AVX2_LANES:
        return False
    return not (target.avx512 if dtype is DType.BF16 else target.native_f16)
