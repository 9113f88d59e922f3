"""Matrix products among the library calls: who runs them, and the code of those that we do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.backends.llvm.load import load_text
from tofuse.backends.llvm.machine_code import Kept
from tofuse.backends.llvm.matmul.blocked_loops import (
    COLUMNS,
    SLABS,
    WORDS,
    driver_text,
)
from tofuse.backends.llvm.matmul.masked_vectors import LANES
from tofuse.backends.llvm.matmul.microkernel import micro_text
from tofuse.backends.llvm.matmul.pack import (
    DEPTH,
    WIDTH,
    one_after_another,
    side_by_side,
    slab_elements,
    turned_columns,
)
from tofuse.config import Config
from tofuse.cost.library import library_us
from tofuse.cost.machine import Machine
from tofuse.cost.machine_source import store_of
from tofuse.fusion.assign_executors import ONLY_PYTORCH, Assignment
from tofuse.fusion.gemm_match import NO_PRODUCT, Product, product_of
from tofuse.ir.dims import Dim, symbol
from tofuse.ir.executor import KERNELS, LIBRARY
from tofuse.ir.graph import Value
from tofuse.ir.region import Partition, Region
from tofuse.ir.schedule import Target
from tofuse.plan.donation import KernelCall
from tofuse.runtime.gemm_launch import Blocking, ProductCode

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
) -> dict[Region, tuple[KernelCall, ProductCode]]:
    """Machine code for products that gain by ours, numbered after `launchers`.

    `assigned` then says so. `verify` leaves products to PyTorch, and so does an order of executors
    with PyTorch first.
    """
    names = [n for n in config.executors if n in (KERNELS, LIBRARY)]
    found: dict[Region, tuple[KernelCall, ProductCode]] = {}
    kept = store_of(config)
    if not target.products or names[:1] != [KERNELS] or config.verify:
        return found
    for region, chosen in [*assigned.items()]:
        product = product_of(region, part.storage)
        if chosen.executor is not None:
            continue
        if isinstance(product, str):
            if chosen.why == ONLY_PYTORCH and product != NO_PRODUCT:
                assigned[region] = replace(chosen, why=f"PyTorch's library takes it: {product}")
            continue
        code, arguments = _code(product, kept), _arguments(product)
        sizes = tuple(map(symbol, code.symbols))
        number = len(launchers) + len(found)
        found[region] = KernelCall(number, arguments, sizes, None), code
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


def _arguments(p: Product) -> tuple[Value, ...]:
    """The values whose addresses a product takes."""
    return tuple(x.root for x in (p.a, p.b, p.c, *([p.bias] if p.bias is not None else [])))


def _code(p: Product, kept: Kept) -> ProductCode:
    """The code of a product."""
    rows = kernel_rows(p.m)
    turned = not (p.a.column == 1 or p.k == 1)
    beside = p.b.column == 1 or p.n == 1
    pack_a = side_by_side(rows, LANES) if turned else one_after_another(rows)
    pack_b = side_by_side(WIDTH, WIDTH) if beside else turned_columns()
    slab = 4 * slab_elements(rows, turned)
    by_row = p.bias is not None and p.bias.column == 0 and p.n != 1
    texts = {
        "pack_a": (load_text(pack_a, ["pack"], kept), "pack"),
        "pack_b": (load_text(pack_b, ["pack"], kept), "pack"),
        "micro": (load_text(micro_text(rows, turned, by_row), ["micro"], kept), "micro"),
    }
    fixed = {"biased": int(p.bias is not None), "rows": rows, "slab": slab}
    sizes: dict[str, Dim] = {
        **{"batch": p.batch, "m": p.m, "n": p.n, "k": p.k},
        **{"a_batch": p.a.batch, "a_line": p.a.row, "a_depth": p.a.column},
        **{"b_batch": p.b.batch, "b_line": p.b.column, "b_depth": p.b.row},
        "a_stride": p.a.column if turned else p.a.row,
        "b_stride": p.b.row if beside else p.b.column,
        **{"c_batch": p.c.batch, "c_stride": p.c.row},
        **{"depths": p.depths, "a_depths": p.a.batch, "b_depths": p.b.batch},
    }
    operands = [p.a, p.b, p.c]
    if p.bias is not None:
        operands.append(p.bias)
    added = p.bias or p.c
    sizes |= {"bias_batch": added.batch, "bias_stride": added.row, "bias_column": added.column}
    blocking = Blocking(rows, WIDTH, slab, slab * SLABS + 4 * DEPTH * COLUMNS)
    driver = load_text(driver_text(), ["kernel"], kept)
    offsets = tuple(x.offset for x in operands)
    return ProductCode(driver, texts, tuple(WORDS), sizes, fixed, offsets, blocking)
