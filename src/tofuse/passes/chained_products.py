"""Find products that one kernel computes together with what reads their results.

Attention is the example: a softmax reduces the rows of the first product, and the second product
multiplies the result of the softmax. In one kernel, the values between the two products stay in the
caches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tofuse.analysis.reachability import reachable
from tofuse.cost.target_costs import CostsOf
from tofuse.cost.thresholds import MAX_CHAINED_PRODUCTS
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Graph, Op, Value
from tofuse.passes.chain_index import ChainIndex, is_reduction
from tofuse.passes.product_ops import finished_results


def chained_products(graph: Graph, costs_of: CostsOf) -> frozenset[Value]:
    """Return the results of products that one kernel may compute together with their readers.

    Ops of kernels lead from their results to a reduction of each row, or to a factor of another
    product that has the same rows. No library call reads them; the program may return them.
    """
    index = ChainIndex(graph, costs_of)
    readers = {op: index.readers_of_rows(op) for op in index.products}
    chains = _chains(index.products, readers)
    chained: set[Value] = set()
    for op, chain in chains.items():
        if any(is_reduction(r) or chains.get(r) is chain for r in readers[op]):
            chained |= {op.result, *(r.result for r in readers[op] if chains.get(r) is chain)}
    return frozenset(chained)


def _chains(candidates: Sequence[Op], readers: Mapping[Op, Sequence[Op]]) -> dict[Op, set[Op]]:
    """Return the chain of each product, of at most MAX_CHAINED_PRODUCTS.

    A product that would make a chain longer has none, so that the library computes it.
    """
    chains: dict[Op, set[Op]] = {}
    read: dict[Op, list[Op]] = {op: [] for op in candidates}
    for op in candidates:
        for r in readers[op]:
            if r in read:
                read[r].append(op)
    for op in candidates:
        joined = {op}.union(*(chains[r] for r in read[op] if r in chains))
        if len(joined) <= MAX_CHAINED_PRODUCTS:
            chains |= dict.fromkeys(joined, joined)
    return chains


def separate_chains(part: Partition, chained: Collection[Value]) -> frozenset[Value]:
    """Return the chained products whose results their kernels neither reduce nor multiply."""
    users, found = part.graph.users(), list[Value]()

    for region in part.regions:
        inside, used = set(region.ops), set[Op]()
        products = [op for op in region.ops if op.kind == "contract"]

        def readers(op: Op, inside: Collection[Op] = inside) -> list[Op]:
            return [u for v in op.results for u in users.get(v, ()) if u in inside]

        for op in products:
            reached = [u for u in reachable([op], readers) if u is not op]
            summing = [u for u in reached if is_reduction(u) or u.kind == "contract"]
            used |= {op, *summing} if summing else set()
        for op in products:
            found += finished_results(users, op.result) if op not in used else []
    return frozenset(found).intersection(chained)
