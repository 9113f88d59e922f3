"""Generate code for matrix products if it is faster than PyTorch's library."""

from __future__ import annotations

from collections.abc import Mapping

from tofuse.analysis.alias import MemRef
from tofuse.backends.code_library import CodeLibrary, LoadedText
from tofuse.backends.cpu.cost.products import ProductSize, is_faster, product_costs
from tofuse.backends.cpu.gemm_match import NOT_A_GEMM, Gemm, Matrix, match_gemm
from tofuse.backends.cpu.llvm.matmul.blocked_loops import blocked_loops_text
from tofuse.backends.cpu.llvm.matmul.few_rows import (
    column_group,
    few_rows_kernel_text,
    few_rows_loops_text,
    row_group,
)
from tofuse.backends.cpu.llvm.matmul.gemm_context import CONTEXT_WORDS
from tofuse.backends.cpu.llvm.matmul.masked_vectors import LANES
from tofuse.backends.cpu.llvm.matmul.microkernel import microkernel_text
from tofuse.backends.cpu.llvm.matmul.pack import (
    WIDTH,
    micropanel_elements,
    micropanel_rows,
    micropanel_strides,
    pack_depth_major,
    pack_line_major,
    pack_transposed,
)
from tofuse.backends.cpu.runtime.gemm_launch import GemmCode, GemmLauncher
from tofuse.backends.target import Linking, LoadedProduct
from tofuse.cost.machine import Machine
from tofuse.cost.thresholds import BLOCK_MICROPANELS, PANEL_COLUMNS, PANEL_DEPTH
from tofuse.disk_store import Store
from tofuse.ir.dims import Dim, size_hint, symbol
from tofuse.ir.graph import Value
from tofuse.ir.launch_facts import AliasPairs
from tofuse.ir.region import Region
from tofuse.ir.schedule import Target

WHY = "uses AVX-512; PyTorch's matrix products do not on this processor"
WHY_FEW_ROWS = "reads the large operand of a product of few rows once, and does not pack it"
TOO_SMALL = "it is predicted to be at least as fast"
PACKED, DIRECT = "packed", "direct"
WHY_CONVOLUTION = "a matrix product over channels that keeps the layout of the images"


def load_product(
    region: Region,
    storage: Mapping[Value, MemRef],
    target: Target,
    machine: Machine,
    linking: Linking,
) -> LoadedProduct | str | None:
    """Return code for a library call that is a matrix product, if it is faster.

    Otherwise return why the library is at least as fast; None if the call is no product, or if the
    processor has no kernels for products.
    """
    if not target.avx512:
        return None
    gemm = match_gemm(region, storage)
    if isinstance(gemm, str):
        return gemm if gemm != NOT_A_GEMM else None
    kernel = fastest_kernel(gemm, target, machine)
    if kernel not in (PACKED, DIRECT):
        return kernel
    generate = _few_rows_gemm if kernel == DIRECT else _packed_gemm
    launcher = generate(gemm, linking.store, linking.library)
    is_convolution = "convolution" in str(region.ops[0].attr("target"))
    why = WHY_FEW_ROWS if kernel == DIRECT else WHY_CONVOLUTION if is_convolution else WHY
    arguments = tuple(x.root for x in _operands(gemm))
    sizes = tuple(map(symbol, launcher.symbols))
    return LoadedProduct(launcher, arguments, sizes, _alias_pairs(gemm), why)


def _operands(p: Gemm) -> list[Matrix]:
    return [x for x in (p.a, p.b, p.c, p.bias) if x is not None]


def _alias_pairs(p: Gemm) -> AliasPairs:
    """Return the positions of the bias and of C, if C may be written over it."""

    def strides(x: Matrix) -> tuple[Dim, ...]:
        return x.batch_stride, x.row_stride, x.column_stride

    return ((3, 2),) if p.bias is not None and strides(p.bias) == strides(p.c) else ()


def fastest_kernel(p: Gemm, target: Target, machine: Machine) -> str:
    """Return which of our kernels computes a product, or why PyTorch's library does."""
    sizes = [size_hint(d) for d in (p.m, p.n, p.k, p.batch * p.reduce_batch)]
    # the machine's flops are those of the fastest kernel, ours if the library has no AVX-512
    costs = product_costs(ProductSize(*sizes), machine, library_avx512=not target.fast_gemm)
    own = {}
    if target.fast_gemm:
        own[PACKED] = costs.packed
    if isinstance(p.m, int) and p.a.column_stride == 1 and p.b.row_stride == 1:
        own[DIRECT] = costs.direct
    kernel = min(own, key=lambda name: own[name], default=None)
    return TOO_SMALL if kernel is None or not is_faster(own[kernel], costs.library) else kernel


def _few_rows_gemm(p: Gemm, store: Store, library: CodeLibrary) -> GemmLauncher:
    """Load loops and microkernel for the rows of a product, which are static."""
    assert isinstance(p.m, int)
    rows = row_group(max(1, p.m))
    loops = library.load_text(few_rows_loops_text(rows), ["kernel"], store)
    kernel = library.load_text(few_rows_kernel_text(rows), ["micro"], store)
    bias = p.bias or p.c
    sizes: dict[str, Dim] = {
        **{"has_bias": int(p.bias is not None), "rows": p.m, "columns": column_group(rows)},
        **{"batch": p.batch, "m": p.m, "n": p.n, "k": p.k},
        **{"a_batch": p.a.batch_stride, "a_line": p.a.row_stride},
        **{"b_batch": p.b.batch_stride, "b_line": p.b.column_stride},
        **{"c_batch": p.c.batch_stride, "c_stride": p.c.row_stride},
        **{"depths": p.reduce_batch, "a_depths": p.a.batch_stride, "b_depths": p.b.batch_stride},
        **{"bias_batch": bias.batch_stride, "bias_stride": bias.row_stride},
        **{"bias_column": bias.column_stride, "workspace_per_thread": 0},
    }
    return _launcher(p, loops, {"microkernel": (kernel, "micro")}, sizes)


def _packed_gemm(p: Gemm, store: Store, library: CodeLibrary) -> GemmLauncher:
    """Load loops, packing and microkernel; loops and packing do not depend on the sizes."""
    rows = micropanel_rows(p.m)
    a_transposed = not (p.a.column_stride == 1 or p.k == 1)
    b_contiguous = p.b.column_stride == 1 or p.n == 1
    pack_a = pack_depth_major(rows, LANES) if a_transposed else pack_line_major(rows)
    pack_b = pack_depth_major(WIDTH, WIDTH) if b_contiguous else pack_transposed()
    panel_bytes = 4 * micropanel_elements(rows, a_transposed, PANEL_DEPTH)
    bias_per_row = p.bias is not None and p.bias.column_stride == 0 and p.n != 1
    microkernel = microkernel_text(rows, a_transposed, bias_per_row)
    texts = {
        "pack_a": (library.load_text(pack_a, ["pack"], store), "pack"),
        "pack_b": (library.load_text(pack_b, ["pack"], store), "pack"),
        "microkernel": (library.load_text(microkernel, ["micro"], store), "micro"),
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
        "a_step": micropanel_strides(a_transposed, PANEL_DEPTH)[1],
        "workspace_per_thread": panel_bytes * BLOCK_MICROPANELS + 4 * PANEL_DEPTH * PANEL_COLUMNS,
    }
    loops = library.load_text(blocked_loops_text(), ["kernel"], store)
    return _launcher(p, loops, texts, sizes)


def _launcher(
    p: Gemm,
    loops: LoadedText,
    called: Mapping[str, tuple[LoadedText, str]],
    sizes: Mapping[str, Dim],
) -> GemmLauncher:
    """Return the launcher of loops that call functions, by the name of the context's word."""
    names = {word: (text.digest, name) for word, (text, name) in called.items()}
    offsets = tuple(x.offset for x in _operands(p))
    code = GemmCode(loops.digest, names, CONTEXT_WORDS, sizes, offsets)
    functions = {word: text.functions[0] for word, (text, _) in called.items()}
    return GemmLauncher(code, loops.functions[0], functions)
