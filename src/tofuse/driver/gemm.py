"""Generate code for matrix products if it is faster than PyTorch's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tofuse.backends.llvm.load import CODE
from tofuse.backends.llvm.matmul.blocked_loops import CONTEXT_WORDS, blocked_loops_text
from tofuse.backends.llvm.matmul.masked_vectors import LANES
from tofuse.backends.llvm.matmul.microkernel import microkernel_text
from tofuse.backends.llvm.matmul.pack import (
    WIDTH,
    micropanel_elements,
    pack_depth_major,
    pack_line_major,
    pack_transposed,
)
from tofuse.cache.artifact import load_code
from tofuse.cache.store import Store
from tofuse.config import Config
from tofuse.cost.library import library_us
from tofuse.cost.machine import Machine
from tofuse.cost.machine_source import store_of
from tofuse.cost.thresholds import BLOCK_MICROPANELS, PANEL_COLUMNS, PANEL_DEPTH, PANEL_OVERHEAD
from tofuse.driver.assign_executors import ONLY_PYTORCH, Assignment
from tofuse.driver.load_kernels import LoadedKernels
from tofuse.fusion.gemm_match import NOT_A_GEMM, Gemm, Matrix, match_gemm
from tofuse.ir.dims import Dim, symbol
from tofuse.ir.executor import KERNELS, LIBRARY
from tofuse.ir.region import Partition, Region
from tofuse.ir.schedule import Target
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.runtime.gemm_launch import GemmCode

MAX_ROWS = 14  # 32 registers hold 28 accumulators, two vectors of B and one of A
WHY = "uses AVX-512; PyTorch's matrix products do not on this processor"

WHY_CONVOLUTION = "a matrix product over channels that keeps the layout of the images"


def add_gemms(
    loaded: LoadedKernels,
    part: Partition,
    assigned: Mapping[Region, Assignment],
    target: Target,
    config: Config,
    machine: Machine,
) -> tuple[LoadedKernels, dict[Region, Assignment]]:
    """Return the kernels with matrix products after them, and the assignments that change.

    Code is generated for the library calls that are matrix products, if it is faster. Under
    `verify`, and if "aten" precedes "llvm" among the executors, PyTorch runs all products.
    """
    order = [n for n in config.executors if n in (KERNELS, LIBRARY)]
    if not target.fast_gemm or order[:1] != [KERNELS] or config.verify:
        return loaded, {}
    launchers, bindings, store = [*loaded.launchers], {**loaded.bindings}, store_of(config)
    assignments: dict[Region, Assignment] = {}
    for region, current in assigned.items():
        if current.executor is not None:
            continue
        gemm = match_gemm(region, part.aliases.memrefs)
        if isinstance(gemm, str):
            if current.why == ONLY_PYTORCH and gemm != NOT_A_GEMM:
                why = f"PyTorch's library runs it: {gemm}"
                assignments[region] = replace(current, why=why)
            continue
        code = _generate_gemm(gemm, store)
        arguments = tuple(x.root for x in _operands(gemm))
        sizes = tuple(map(symbol, code.symbols))
        bindings[region] = KernelBinding(len(launchers), arguments, sizes, None)
        launchers.append(load_code(code, store, CODE))
        is_convolution = "convolution" in str(region.ops[0].attr("target"))
        reason = WHY_CONVOLUTION if is_convolution else WHY
        why = reason if current.why == ONLY_PYTORCH else f"{current.why}; {reason}"
        us = library_us(region, machine, pooled=True)
        assignments[region] = Assignment(KERNELS, why, us)
    return LoadedKernels(launchers, bindings, loaded.notes), assignments


def kernel_rows(m: Dim) -> int:
    """Return the rows of C held in registers: many, but few unused in the last micropanel."""
    if not isinstance(m, int):
        return MAX_ROWS
    if m <= MAX_ROWS:
        return max(1, m)
    return min(range(MAX_ROWS, 7, -1), key=lambda rows: -(-m // rows) * (rows + PANEL_OVERHEAD))


def _operands(p: Gemm) -> list[Matrix]:
    return [x for x in (p.a, p.b, p.c, p.bias) if x is not None]


def _generate_gemm(p: Gemm, store: Store) -> GemmCode:
    """Return loops, packing and microkernel; loops and packing do not depend on the sizes."""
    rows = kernel_rows(p.m)
    a_transposed = not (p.a.column_stride == 1 or p.k == 1)
    b_contiguous = p.b.column_stride == 1 or p.n == 1
    pack_a = pack_depth_major(rows, LANES) if a_transposed else pack_line_major(rows)
    pack_b = pack_depth_major(WIDTH, WIDTH) if b_contiguous else pack_transposed()
    panel_bytes = 4 * micropanel_elements(rows, a_transposed)
    bias_per_row = p.bias is not None and p.bias.column_stride == 0 and p.n != 1
    microkernel = microkernel_text(rows, a_transposed, bias_per_row)
    texts = {
        "pack_a": (CODE.load_text(pack_a, ["pack"], store), "pack"),
        "pack_b": (CODE.load_text(pack_b, ["pack"], store), "pack"),
        "microkernel": (CODE.load_text(microkernel, ["micro"], store), "micro"),
    }
    bias = p.bias or p.c
    sizes: dict[str, Dim] = {
        **{"has_bias": int(p.bias is not None), "rows": rows, "columns": WIDTH},
        **{"batch": p.batch, "m": p.m, "n": p.n, "k": p.k},
        **{"a_batch": p.a.batch_stride, "a_line": p.a.row_stride, "a_depth": p.a.column_stride},
        **{"b_batch": p.b.batch_stride, "b_line": p.b.column_stride, "b_depth": p.b.row_stride},
        "a_stride": p.a.column_stride if a_transposed else p.a.row_stride,
        "b_stride": p.b.row_stride if b_contiguous else p.b.column_stride,
        **{"c_batch": p.c.batch_stride, "c_stride": p.c.row_stride},
        **{"depths": p.reduce_batch, "a_depths": p.a.batch_stride, "b_depths": p.b.batch_stride},
        **{"bias_batch": bias.batch_stride, "bias_stride": bias.row_stride},
        "bias_column": bias.column_stride,
        "micropanel": panel_bytes,
        "workspace_per_thread": panel_bytes * BLOCK_MICROPANELS + 4 * PANEL_DEPTH * PANEL_COLUMNS,
    }
    loops = CODE.load_text(blocked_loops_text(), ["kernel"], store)
    offsets = tuple(x.offset for x in _operands(p))
    return GemmCode(loops, texts, CONTEXT_WORDS, sizes, offsets)
