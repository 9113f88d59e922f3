"""Products whose results kernels use while they are in the caches: for softmax, or as factors.

Attention is the example: a softmax reduces the rows of the first product, and the second product
has its result as a factor. One kernel of them stores none of what is between them.
"""

from __future__ import annotations

from collections.abc import Collection

from tofuse.analysis.reachability import reachable
from tofuse.cost.target_costs import CostsOf
from tofuse.graph_partition import Partition
from tofuse.ir.dims import product
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.types import DType
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.contract_products import is_contractible
from tofuse.passes.product_ops import factors_of


def chained_products(graph: Graph, costs_of: CostsOf) -> frozenset[Value]:
    """Return the results of products that one kernel may compute together with their readers.

    Ops of kernels lead from their results to a reduction, or to a factor of another product.
    """
    candidates = {
        op.result: op
        for op in graph.ops
        if op.kind == "opaque" and is_contractible(op) and _fits_caches(op, costs_of)
    }
    if not candidates:
        return frozenset()
    users = graph.users()

    def fused_readers(v: Value) -> list[Value]:
        readers = [op for op in users.get(v, ()) if OPS[op.kind].pattern is not Pattern.OPAQUE]
        return [r for op in readers for r in op.results]

    producers, chained = graph.producers(), dict[Value, None]()
    for result, op in candidates.items():
        reached = reachable([result], fused_readers)
        next_ones = [
            other.result
            for other in candidates.values()
            if other is not op and sum(f in reached for f in factors_of(other)) == 1
        ]
        if next_ones or any(_is_reduction(producers.get(v)) for v in reached if v != result):
            chained |= dict.fromkeys((result, *next_ones))
    return frozenset(chained)


def separate_chains(part: Partition, chained: Collection[Value]) -> frozenset[Value]:
    """Return the chained products whose kernel has no reduction but that of the product."""
    found: list[Value] = []
    users = part.graph.users()

    def finished(v: Value) -> list[Value]:
        """Return the results of the additions and conversions that read a value."""
        return [op.result for op in users.get(v, ()) if op.kind in ("add", "convert")]

    for region in part.regions:
        reducing = [op for op in region.ops if _is_reduction(op) or op.kind == "contract"]
        if len(reducing) == 1 and reducing[0].kind == "contract":
            found += reachable([reducing[0].result], finished)
    return frozenset(found).intersection(chained)


def _is_reduction(op: Op | None) -> bool:
    return op is not None and OPS[op.kind].pattern is Pattern.REDUCE


def _fits_caches(op: Op, costs_of: CostsOf) -> bool:
    """Whether a factor of a product, without its batch, is small enough to be packed once."""
    costs = costs_of(op.result.type.device)
    if op.result.dtype not in costs.blocked_dtypes:
        return False
    sizes = [product(f.shape[-2:]) for f in factors_of(op)]
    most = costs.max_chained_bytes // DType.F32.itemsize
    return any(isinstance(n, int) and 0 < n <= most for n in sizes)
