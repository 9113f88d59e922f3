"""Matrix products among the library calls: who runs them, and the code of those that we do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.backends.llvm.load import load_text
from tofuse.backends.llvm.machine_code import CodeStore
from tofuse.backends.llvm.matmul.blocked_loops import (
    BLOCK_MICROPANELS,
    CONTEXT_WORDS,
    PANEL_COLUMNS,
    blocked_loops_text,
)
from tofuse.backends.llvm.matmul.masked_vectors import LANES
from tofuse.backends.llvm.matmul.microkernel import microkernel_text
from tofuse.backends.llvm.matmul.pack import (
    DEPTH,
    WIDTH,
    micropanel_elements,
    pack_depth_major,
    pack_line_major,
    pack_transposed,
)
from tofuse.config import Config
from tofuse.cost.library import library_us
from tofuse.cost.machine import Machine
from tofuse.cost.machine_source import store_of
from tofuse.fusion.assign_executors import ONLY_PYTORCH, Assignment
from tofuse.fusion.gemm_match import NOT_A_GEMM, Gemm, match_gemm
from tofuse.ir.dims import Dim, symbol
from tofuse.ir.executor import KERNELS, LIBRARY
from tofuse.ir.graph import Value
from tofuse.ir.region import Partition, Region
from tofuse.ir.schedule import Target
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.runtime.gemm_launch import Blocking, GemmCode

MOST_ROWS = 14  # 28 sums, two vectors of B and one of A in 32 registers
WHY = "AVX-512, which PyTorch's library of matrix products does not use on this processor"

WHY_CONVOLUTION = "a matrix product of channels, on the images as they lie"


def build_products(
    part: Partition,
    assigned: dict[Region, Assignment],
    target: Target,
    config: Config,
    machine: Machine,
    launchers: Sequence[object],
) -> dict[Region, tuple[KernelBinding, GemmCode]]:
    """Machine code for products that gain by ours, numbered after `launchers`.

    `assigned` then says so. `verify` leaves products to PyTorch, and so does an order of executors
    with PyTorch first.
    """
    names = [n for n in config.executors if n in (KERNELS, LIBRARY)]
    found: dict[Region, tuple[KernelBinding, GemmCode]] = {}
    kept = store_of(config)
    if not target.fast_gemm or names[:1] != [KERNELS] or config.verify:
        return found
    for region, chosen in [*assigned.items()]:
        product = match_gemm(region, part.storage)
        if chosen.executor is not None:
            continue
        if isinstance(product, str):
            if chosen.why == ONLY_PYTORCH and product != NOT_A_GEMM:
                assigned[region] = replace(chosen, why=f"PyTorch's library takes it: {product}")
            continue
        code, arguments = _code(product, kept), _arguments(product)
        sizes = tuple(map(symbol, code.symbols))
        number = len(launchers) + len(found)
        found[region] = KernelBinding(number, arguments, sizes, None), code
        own = WHY_CONVOLUTION if "convolution" in str(region.ops[0].attr("target")) else WHY
        why = own if chosen.why == ONLY_PYTORCH else f"{chosen.why}; {own}"
        assigned[region] = Assignment(KERNELS, why, library_us(region, machine, pooled=True))
    return found


def kernel_rows(m: Dim) -> int:
    """Rows of C in registers: few idle ones in the last slab, and many sums at once."""
    if not isinstance(m, int):
        return MOST_ROWS
    if m <= MOST_ROWS:
        return max(1, m)
    return min(range(MOST_ROWS, 7, -1), key=lambda rows: -(-m // rows) * (rows + LOST))


LOST = 0.7  # rows' worth of time that a slab costs beside its rows


def _arguments(p: Gemm) -> tuple[Value, ...]:
    """The values whose addresses a product takes."""
    return tuple(x.root for x in (p.a, p.b, p.c, *([p.bias] if p.bias is not None else [])))


def _code(p: Gemm, kept: CodeStore) -> GemmCode:
    """The code of a product."""
    rows = kernel_rows(p.m)
    turned = not (p.a.column_stride == 1 or p.k == 1)
    beside = p.b.column_stride == 1 or p.n == 1
    pack_a = pack_depth_major(rows, LANES) if turned else pack_line_major(rows)
    pack_b = pack_depth_major(WIDTH, WIDTH) if beside else pack_transposed()
    slab = 4 * micropanel_elements(rows, turned)
    by_row = p.bias is not None and p.bias.column_stride == 0 and p.n != 1
    texts = {
        "pack_a": (load_text(pack_a, ["pack"], kept), "pack"),
        "pack_b": (load_text(pack_b, ["pack"], kept), "pack"),
        "microkernel": (
            load_text(microkernel_text(rows, turned, by_row), ["micro"], kept),
            "micro",
        ),
    }
    fixed = {"has_bias": int(p.bias is not None), "rows": rows, "micropanel": slab}
    sizes: dict[str, Dim] = {
        **{"batch": p.batch, "m": p.m, "n": p.n, "k": p.k},
        **{"a_batch": p.a.batch_stride, "a_line": p.a.row_stride, "a_depth": p.a.column_stride},
        **{"b_batch": p.b.batch_stride, "b_line": p.b.column_stride, "b_depth": p.b.row_stride},
        "a_stride": p.a.column_stride if turned else p.a.row_stride,
        "b_stride": p.b.row_stride if beside else p.b.column_stride,
        **{"c_batch": p.c.batch_stride, "c_stride": p.c.row_stride},
        **{"depths": p.reduce_batch, "a_depths": p.a.batch_stride, "b_depths": p.b.batch_stride},
    }
    operands = [p.a, p.b, p.c]
    if p.bias is not None:
        operands.append(p.bias)
    added = p.bias or p.c
    sizes |= {
        "bias_batch": added.batch_stride,
        "bias_stride": added.row_stride,
        "bias_column": added.column_stride,
    }
    blocking = Blocking(rows, WIDTH, slab, slab * BLOCK_MICROPANELS + 4 * DEPTH * PANEL_COLUMNS)
    driver = load_text(blocked_loops_text(), ["kernel"], kept)
    offsets = tuple(x.offset for x in operands)
    return GemmCode(driver, texts, tuple(CONTEXT_WORDS), sizes, fixed, offsets, blocking)
