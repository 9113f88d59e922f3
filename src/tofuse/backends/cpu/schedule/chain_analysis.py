"""The products of a kernel that read one another's results: rows, columns and stages.

Attention is such a kernel: the weights of the second product are a softmax of the first one's
result. A row of the first result is all that a row of the second one needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tofuse.backends.cpu.schedule.product_analysis import product_factors
from tofuse.cost.thresholds import MAX_CHAINED_PRODUCTS
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import CARRIED, Kernel, Reduce, Stmt, Store, iteration_axes
from tofuse.ir.types import DType
from tofuse.schedule.axis_strides import axes_by_stride
from tofuse.schedule.backward_slice import backward_slice


@dataclass(frozen=True, eq=False)
class ChainedSum:
    """A sum of products of the values `left` and `right` over the axes `depth`.

    The left factor alone has the rows of the kernel, the right one alone has the axis `columns`.
    """

    total: Reduce
    left: str
    right: str
    columns: str
    depth: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ChainAnalysis:
    """The chained products of a kernel.

    `stages` has the stage of each statement: the length of the longest run of products that must
    finish before it. A product itself belongs to the stage after that of its factors. `outer` are
    the axes that are neither rows nor columns nor reduced.
    """

    kernel: Kernel
    rows: str
    outer: tuple[str, ...]
    sums: tuple[ChainedSum, ...]
    stages: Mapping[Stmt, int]

    def sum_of(self, stmt: Stmt) -> int | None:
        """Return the number of the product whose sum a statement is, or None."""
        return next((n for n, s in enumerate(self.sums) if s.total is stmt), None)


@lru_cache(maxsize=8)
def analyze_chain(kernel: Kernel) -> ChainAnalysis | None:
    """Return the products of a kernel that runs row by row, None if it does not.

    It has one product at least, and another reduction. Its results and all reductions depend on
    the rows. No right factor depends on a reduction.
    """
    reductions = [s for s in kernel.body if isinstance(s, Reduce)]
    if len(reductions) < 2 or any(kernel.extent(a) == 0 for a in kernel.extents):
        return None
    if any(isinstance(s, CARRIED) for s in kernel.body):
        return None
    value_axes, stmt_axes = iteration_axes(kernel)
    factors = {
        s: pair
        for s in reductions
        if s.op == "sum" and s.dtype is DType.F32 and (pair := product_factors(kernel, s))
    }
    if not 0 < len(factors) <= MAX_CHAINED_PRODUCTS:
        return None
    reduced = frozenset(a for s in reductions for a in s.over)
    stores = [s for s in kernel.body if isinstance(s, Store)]
    on_all = [stmt_axes[s] for s in stores] + [value_axes[s.name] for s in reductions]
    on_every = frozenset.intersection(*on_all) - reduced
    candidates = on_every & frozenset.intersection(
        *(value_axes[x] ^ value_axes[y] for x, y in factors.values())
    )
    if not candidates:
        return None
    by_stride = axes_by_stride(kernel, [(s.index, 1) for s in stores])
    rows = max(candidates, key=lambda a: (size_hint(kernel.extent(a)), by_stride.index(a)))
    oriented = {s: (x, y) if rows in value_axes[x] else (y, x) for s, (x, y) in factors.items()}
    columns = {s: value_axes[y] - value_axes[x] - on_every for s, (x, y) in oriented.items()}
    if any(len(c) != 1 for c in columns.values()):
        return None
    inner = reduced.union({rows}, *columns.values())
    outer = tuple(a for a in by_stride if a not in inner)
    sums = tuple(
        ChainedSum(s, left, right, next(iter(columns[s])), s.over)
        for s, (left, right) in oriented.items()
    )
    if not _has_row_results(kernel, rows, outer, sums, reductions):
        return None
    stages = _stages(kernel, [s.total for s in sums])
    return ChainAnalysis(kernel, rows, outer, sums, stages)


def _has_row_results(
    kernel: Kernel,
    rows: str,
    outer: Collection[str],
    sums: Sequence[ChainedSum],
    reductions: Sequence[Reduce],
) -> bool:
    """Whether a product has rows and columns, and any other reduction one number for each row."""
    value_axes, _ = iteration_axes(kernel)
    around = frozenset((*outer, rows))
    totals = {s.total for s in sums}
    if any(value_axes[r.name] - around for r in reductions if r not in totals):
        return False
    for s in sums:
        inside = around.union(s.depth)
        if value_axes[s.left] - inside or value_axes[s.right] - inside != {s.columns}:
            return False
        if any(not isinstance(kernel.extent(a), int) for a in (*s.depth, s.columns)):
            return False
        needed = backward_slice([kernel.definitions[s.right]], kernel.definitions)
        if any(isinstance(d, Reduce) for d in needed):
            return False
    return True


def _stages(kernel: Kernel, totals: Collection[Reduce]) -> dict[Stmt, int]:
    """Return how many products, one after the other, each statement waits for."""
    stages: dict[Stmt, int] = {}
    for stmt in kernel.body:
        needed = [stages[kernel.definitions[u]] for u in stmt.uses]
        stages[stmt] = max(needed, default=0) + (stmt in totals)
    return stages
