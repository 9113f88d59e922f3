"""The products of a joint graph that its backward may compute again, instead of saving results."""

from __future__ import annotations

from tofuse.cost.target_costs import CostsOf
from tofuse.cost.thresholds import (
    MAX_RECOMPUTED_SIDE_RATIO,
    MIN_RECOMPUTED_PRODUCT_DEPTH,
    MIN_RECOMPUTED_PRODUCT_RATIO,
)
from tofuse.ir.dims import product
from tofuse.ir.graph import Graph, Op
from tofuse.ir.recomputable import RecomputableProducts
from tofuse.passes.chain_index import ChainIndex
from tofuse.passes.product_ops import factors_of


def recomputable_products(graph: Graph, costs_of: CostsOf) -> RecomputableProducts:
    """Return the products whose results are much larger than their factors, and stay in kernels.

    Forward and backward compute them with other roundings. So no product is among them that the
    program compares with its reductions: the gradient of a maximum is where the maximum is.
    """
    index = ChainIndex(graph, costs_of)
    products, values, readers = set[str](), set[str](), set[str]()
    for op in filter(_is_much_larger, index.products):
        found = next(index.readers(op), None)
        if found is not None and found.of_rows and not found.compares:
            products.add(op.result.name)
            values.update(v.name for v in found.values)
            readers.update(r.result.name for r in (*found.of_rows, *found.over_rows))
    return RecomputableProducts(frozenset(products), frozenset(values), frozenset(readers))


def _is_much_larger(op: Op) -> bool:
    """Whether a product is much larger than its factors, and worth computing again."""
    left, right = factors_of(op)
    sizes = [product(x.shape) for x in (op.result, left, right)]
    rows, columns = op.result.shape[-2:]
    depth = left.shape[-1]
    result, *factors = (n if isinstance(n, int) else 0 for n in sizes)
    if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(depth, int)):
        return False
    if depth < MIN_RECOMPUTED_PRODUCT_DEPTH or 0 in (result, *factors):
        return False
    is_oblong = max(rows, columns) > MAX_RECOMPUTED_SIDE_RATIO * min(rows, columns)
    return result >= MIN_RECOMPUTED_PRODUCT_RATIO * sum(factors) and not is_oblong
