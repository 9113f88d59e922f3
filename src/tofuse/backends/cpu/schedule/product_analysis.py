"""The products of a kernel that may run by blocks: their factors, rows and columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tofuse.backends.cpu.llvm.matmul.pack import WIDTH
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import CARRIED, Compute, Kernel, Load, Reduce, Store, iteration_axes
from tofuse.ir.types import DType
from tofuse.schedule.axis_strides import axes_by_stride
from tofuse.schedule.backward_slice import backward_slice


@dataclass(frozen=True, eq=False)
class ProductAnalysis:
    """The products of a kernel, and the axes of their results.

    `factors` are the names of the left and the right factor of each sum. The left factors alone
    have the axis `rows`, the right ones alone the axis `columns`. `outer` are all other axes.
    """

    kernel: Kernel
    sums: tuple[Reduce, ...]
    factors: tuple[tuple[str, str], ...]
    rows: str
    columns: str
    outer: tuple[str, ...]

    def is_contiguous_along(self, factor: str, lines: str) -> bool:
        """Whether more loads of a factor are contiguous along its lines than along the depth."""
        depth = {a for s in self.sums for a in s.over}
        return is_contiguous_along(self.kernel, factor, lines, depth)

    def transposed(self) -> ProductAnalysis:
        """Return the same products with left and right, rows and columns exchanged."""
        factors = tuple((right, left) for left, right in self.factors)
        return replace(self, factors=factors, rows=self.columns, columns=self.rows)


@lru_cache(maxsize=8)
def analyze_products(kernel: Kernel) -> ProductAnalysis | None:
    """Return the products of a kernel, None if it reduces or stores anything else.

    The left factors alone have the rows, the right factors alone have the columns. If the
    right factors alone have the axis along which the results are contiguous, and it fills a
    micropanel, it is the columns.
    """
    value_axes, stmt_axes = iteration_axes(kernel)
    sums = tuple(s for s in kernel.body if isinstance(s, Reduce))
    if any(isinstance(s, CARRIED) for s in kernel.body):
        return None
    if not sums or any(s.op != "sum" or s.dtype is not DType.F32 for s in sums):
        return None
    result = value_axes[sums[0].name]
    stores = [s for s in kernel.body if isinstance(s, Store)]
    if any(stmt_axes[s] != result for s in stores) or not stores:
        return None
    if any(not isinstance(kernel.extent(a), int) for s in sums for a in s.over):
        return None
    if any(kernel.extent(a) == 0 for a in kernel.extents):
        return None
    pairs = [product_factors(kernel, s) for s in sums]
    found = [p for p in pairs if p is not None]
    if len(found) < len(pairs) or any(value_axes[s.name] != result for s in sums):
        return None
    by_stride = axes_by_stride(kernel, [(s.index, 1) for s in stores])
    last = next(a for a in reversed(by_stride) if a in result)
    oriented = [(y, x) if last in value_axes[x] - value_axes[y] else (x, y) for x, y in found]
    if _needs_reduction(kernel, [f for pair in oriented for f in pair]):
        return None
    columns = frozenset.intersection(*(value_axes[b] - value_axes[a] for a, b in oriented))
    rows = frozenset.intersection(*(value_axes[a] - value_axes[b] for a, b in oriented))
    columns, rows = columns & result, rows & result
    if not columns or not rows:
        return None

    def longest(axes: frozenset[str]) -> str:
        return max(axes, key=lambda a: (size_hint(kernel.extent(a)), by_stride.index(a)))

    fills_a_micropanel = size_hint(kernel.extent(last)) >= WIDTH
    row, column = longest(rows), longest(columns)
    column = last if last in columns and fills_a_micropanel else column
    outer = tuple(a for a in by_stride if a in result - {row, column})
    return ProductAnalysis(kernel, sums, tuple(oriented), row, column, outer)


def is_contiguous_along(kernel: Kernel, factor: str, lines: str, depth: Collection[str]) -> bool:
    """Whether more loads of a factor are contiguous along its lines than along the depth."""
    needed = backward_slice([kernel.definitions[factor]], kernel.definitions)
    loads = [s for s in needed if isinstance(s, Load)]
    along_lines = sum(s.index.coefficient(lines) == 1 for s in loads)
    return along_lines > sum(any(s.index.coefficient(a) == 1 for a in depth) for s in loads)


def product_factors(kernel: Kernel, s: Reduce) -> tuple[str, str] | None:
    """Return the factors of a sum of products that both run over its depth.

    Each factor must have an axis that the other one lacks.
    """
    value_axes, _ = iteration_axes(kernel)
    product = kernel.definitions[s.arg]
    if not isinstance(product, Compute) or product.op != "mul" or product.dtype is not DType.F32:
        return None
    x, y = product.args
    if not isinstance(x, str) or not isinstance(y, str):
        return None
    over = frozenset(s.over)
    both = value_axes[x] & value_axes[y] >= over
    own = value_axes[x] - value_axes[y] and value_axes[y] - value_axes[x]
    return (x, y) if both and own else None


def _needs_reduction(kernel: Kernel, factors: Sequence[str]) -> bool:
    """Whether a factor depends on a reduction, so that it has no blocks of its own."""
    needed = backward_slice([kernel.definitions[f] for f in factors], kernel.definitions)
    return any(isinstance(d, Reduce) for d in needed)
