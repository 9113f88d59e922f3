"""Find products that one kernel computes together with what reads their results.

Attention is the example: a softmax reduces the rows of the first product, and the second product
multiplies the result of the softmax. In one kernel, the values between the two products stay in the
caches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tofuse.analysis.reachability import reachable
from tofuse.cost.target_costs import CostsOf
from tofuse.cost.thresholds import MAX_CHAINED_PRODUCTS
from tofuse.graph_partition import Partition
from tofuse.ir.dims import product
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.types import DType
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.contract_products import is_contractible
from tofuse.passes.product_ops import factors_of, finished_results

Rows = tuple[Value, int]  # a value, and its dimension that has the rows of a product


def chained_products(graph: Graph, costs_of: CostsOf) -> frozenset[Value]:
    """Return the results of products that one kernel may compute together with their readers.

    Ops of kernels lead from their results to a reduction of each row, or to a factor of another
    product that has the same rows. No library call reads them; the program may return them.
    """
    candidates = [
        op
        for op in graph.ops
        if op.kind == "opaque" and is_contractible(op) and _fits_caches(op, costs_of)
    ]
    users = graph.users() if candidates else {}
    readers = {op: _readers_of_rows(op, users, set(candidates)) for op in candidates}
    chains = _chains(candidates, readers)
    chained: set[Value] = set()
    for op, chain in chains.items():
        if any(_is_reduction(r) or chains.get(r) is chain for r in readers[op]):
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
            summing = [u for u in reached if _is_reduction(u) or u.kind == "contract"]
            used |= {op, *summing} if summing else set()
        for op in products:
            found += finished_results(users, op.result) if op not in used else []
    return frozenset(found).intersection(chained)


def _is_reduction(op: Op) -> bool:
    return OPS[op.kind].pattern is Pattern.REDUCE


def _fits_caches(op: Op, costs_of: CostsOf) -> bool:
    """Whether a factor of a product, without its batch, is small enough to be packed once."""
    costs = costs_of(op.result.type.device)
    if op.result.dtype not in costs.blocked_dtypes:
        return False
    sizes = [product(f.shape[-2:]) for f in factors_of(op)]
    most = costs.max_chained_bytes // DType.F32.itemsize
    return any(isinstance(n, int) and 0 < n <= most for n in sizes)


def _readers_of_rows(
    first: Op, users: Mapping[Value, Sequence[Op]], candidates: Collection[Op]
) -> list[Op]:
    """Return the reductions and candidates that read the rows of a product.

    None if another op needs the product, or what kernels compute from it, in memory.
    """
    result = first.result
    found: list[Op] = []
    seen, work = set[Rows](), [(result, len(result.shape) - 2)]
    while work:
        rows = work.pop()
        if rows in seen:
            continue
        seen.add(rows)
        for op in users.get(rows[0], ()):
            if op in candidates and _multiplies_rows(op, rows):
                found.append(op)
            elif _is_reduction(op) and rows[1] not in op.ints("dims"):
                found.append(op)
                work += _rows_of_result(op, rows)
            elif next_rows := list(_rows_of_result(op, rows)):
                work += next_rows
            else:
                return []
    return found


def _multiplies_rows(op: Op, rows: Rows) -> bool:
    """Whether a product has the rows of a factor as its own rows, or columns."""
    (value, dim), (left, right) = rows, factors_of(op)
    last = len(value.shape) - 1
    return (left is value and dim == last - 1) != (right is value and dim == last)


def _rows_of_result(op: Op, rows: Rows) -> Iterator[Rows]:
    """Yield the result of an op of a kernel with its dimension that has the rows, if it has one."""
    (value, dim), result = rows, op.result if len(op.results) == 1 else None
    if result is None:
        return
    match OPS[op.kind].pattern:
        case Pattern.ELEMENTWISE:
            yield result, dim
        case Pattern.BROADCAST:
            yield result, op.ints("dims")[dim]
        case Pattern.REDUCE if dim not in op.ints("dims"):
            yield result, dim - sum(d < dim for d in op.ints("dims"))
        case Pattern.VIEW if op.kind == "permute":
            yield result, op.ints("dims").index(dim)
        case Pattern.VIEW if op.kind == "reshape":
            inner = product(value.shape[dim + 1 :])
            for d, extent in enumerate(result.shape):
                if extent == value.shape[dim] and product(result.shape[d + 1 :]) == inner:
                    yield result, d
                    return
