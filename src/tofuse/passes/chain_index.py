"""What reads the rows of a product: the question of whether one kernel may have it and its readers.

The rows of a chain are those of its first product, or its columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tofuse.analysis.reachability import reachable
from tofuse.analysis.track_dimension import Dimension, dimension_of_result
from tofuse.cost.target_costs import CostsOf
from tofuse.cost.thresholds import MAX_CHAINED_VALUES
from tofuse.ir.dims import product
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.types import DType
from tofuse.ops.table import COMPARISONS, OPS, Pattern
from tofuse.passes.contract_products import is_contractible
from tofuse.passes.product_ops import factors_of


@dataclass(frozen=True, eq=False)
class RowReaders:
    """The readers of a product whose rows are those of a chain.

    Ops of kernels make `values` of the product. `of_rows` are reductions of a row, and products
    that multiply the rows. `over_rows` are products that sum over the rows, and their factors of
    the chain. `compares`: a value is compared with what a reduction makes of them.
    """

    values: frozenset[Value]
    of_rows: tuple[Op, ...]
    over_rows: Mapping[Op, Value]
    compares: bool


class ChainIndex:
    """The products of a graph that chains may begin with, and their readers."""

    def __init__(self, graph: Graph, costs_of: CostsOf) -> None:
        self.products = [
            op
            for op in graph.ops
            if op.kind == "opaque" and is_contractible(op) and _fits_caches(op, costs_of)
        ]
        self._users = graph.users() if self.products else {}
        self._producers = graph.producers() if self.products else {}
        self._found = frozenset(self.products)

    def readers_of_rows(self, product: Op) -> tuple[Op, ...]:
        """Return the readers of the rows of a product.

        There are none if another op needs the product, or what kernels compute from it, in memory.
        """
        found = (r.of_rows for r in self.readers(product) if not r.over_rows)
        return next(found, ())

    def readers(self, product: Op) -> Iterator[RowReaders]:
        """Yield the readers of a product, with its rows and with its columns as rows of the chain.

        Nothing is yielded for rows with which an op needs a value in memory.
        """
        last = len(product.result.shape) - 1
        for rows in (last - 1, last):
            readers = self._readers(Dimension(product.result, rows))
            if readers is not None:
                yield readers

    def _readers(self, first: Dimension) -> RowReaders | None:
        of_rows, over_rows, comparisons = list[Op](), dict[Op, Value](), list[Op]()
        seen, work = {first}, [first]
        while work:
            rows = work.pop()
            for op in self._users.get(rows.value, ()):
                result = dimension_of_result(op, rows)
                if op in self._found and _multiplies_rows(op, rows):
                    of_rows.append(op)
                elif op in self._found and _sums_over_rows(op, rows):
                    over_rows[op] = rows.value
                elif result is None or len(seen) > MAX_CHAINED_VALUES:
                    return None
                elif is_reduction(op):
                    of_rows.append(op)
                elif result not in seen:
                    seen.add(result)
                    work.append(result)
                if op.kind in COMPARISONS:
                    comparisons.append(op)
        values = frozenset(d.value for d in seen)
        compares = any(self._reads_reduction(op, values, of_rows) for op in comparisons)
        return RowReaders(values, tuple(of_rows), over_rows, compares)

    def _reads_reduction(self, op: Op, values: Collection[Value], reductions: Sequence[Op]) -> bool:
        """Whether an op reads what kernels compute from one of the reductions, beside `values`."""

        def operands(v: Value) -> Sequence[Value]:
            producer = self._producers.get(v)
            return () if producer is None or producer in reductions else producer.inputs

        needed = reachable([v for v in op.inputs if v not in values], operands)
        return any(self._producers.get(v) in reductions for v in needed)


def is_reduction(op: Op) -> bool:
    """Whether an op reduces its operand."""
    return OPS[op.kind].pattern is Pattern.REDUCE


def _fits_caches(op: Op, costs_of: CostsOf) -> bool:
    """Whether a factor of a product, without its batch, is small enough to be packed once."""
    costs = costs_of(op.result.type.device)
    if op.result.dtype not in costs.blocked_dtypes:
        return False
    sizes = [product(f.shape[-2:]) for f in factors_of(op)]
    most = costs.max_chained_bytes // DType.F32.itemsize
    return any(isinstance(n, int) and 0 < n <= most for n in sizes)


def _multiplies_rows(op: Op, rows: Dimension) -> bool:
    """Whether a product has the rows of a factor as its own rows, or columns."""
    (value, dim), (left, right) = rows, factors_of(op)
    last = len(value.shape) - 1
    return (left is value and dim == last - 1) != (right is value and dim == last)


def _sums_over_rows(op: Op, rows: Dimension) -> bool:
    """Whether a product sums over the rows of one factor."""
    (value, dim), (left, right) = rows, factors_of(op)
    last = len(value.shape) - 1
    return (left is value and dim == last) != (right is value and dim == last - 1)
