"""Give products that sum over the rows of a chain a copy of the chain.

The gradients of attention are such products: that of the keys sums over the queries, while the
softmax sums over the keys. No block of rows has both. The rows of the copy are the keys. It
computes the scores again, so that they need no memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tofuse.analysis.reachability import reachable
from tofuse.cost.target_costs import CostsOf
from tofuse.ir.graph import Graph, Names, Op, Value, substitute_operands
from tofuse.ir.region import Side
from tofuse.ir.types import DType
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.chain_index import ChainIndex, is_reduction
from tofuse.passes.product_ops import factors_of

IN_MEMORY = frozenset(
    (Pattern.REDUCE, Pattern.SCAN, Pattern.SCATTER, Pattern.CONTRACT, Pattern.OPAQUE)
)


@dataclass(frozen=True, eq=False)
class DuplicatedChains:
    """A graph with copies of chains.

    `copies` has the copies of the products that chains begin with, and `readers` the products that
    sum over their rows. A kernel may have results of one side only; `sides` are by their names.
    """

    graph: Graph
    copies: Mapping[Value, Value] = field(default_factory=dict)
    readers: Mapping[Value, frozenset[Op]] = field(default_factory=dict)
    sides: Mapping[str, Side] = field(default_factory=dict)

    def beside(self, products: Collection[Value]) -> frozenset[Value]:
        """Return products, and those with which they have readers in common."""
        found = frozenset(products)
        read = frozenset[Op]().union(*(self.readers[v] for v in found))
        more = frozenset(v for v, readers in self.readers.items() if not read.isdisjoint(readers))
        return found if more <= found else self.beside(found | more)


def duplicate_chains(
    graph: Graph, costs_of: CostsOf, excluded: Collection[Value] = ()
) -> DuplicatedChains:
    """Return the graph with a copy of what these products read, up to results of reductions.

    Chains that begin with `excluded` products have no copy, nor do chains whose values the program
    compares with their reductions: the copy is rounded in another order.
    """
    index = ChainIndex(graph, costs_of)
    summing: dict[Op, Mapping[Op, Value]] = {}
    for op in index.products:
        readers = (r for r in index.readers(op) if r.of_rows and r.over_rows and not r.compares)
        if op.result not in excluded and (found := next(readers, None)) is not None:
            summing[op] = found.over_rows
    if not summing:
        return DuplicatedChains(graph)
    factors = {reader: factor for found in summing.values() for reader, factor in found.items()}
    names = Names(graph)
    copies = {
        v: replace(v, name=names.fresh(f"{v.name}_again"))
        for v in _copied_values(graph, summing, factors.values())
    }
    ops: list[Op] = []
    for op in graph.ops:
        factor = factors.get(op)
        read = {factor: copies[factor]} if factor in copies else {}
        ops.append(replace(op, operands=substitute_operands(op.operands, read)))
        if op.results and op.result in copies:
            read = {} if op in summing else copies
            operands = substitute_operands(op.operands, read)
            ops.append(replace(op, operands=operands, results=(copies[op.result],)))
    sides = {v.name: Side.FACTORS for v in _values_of_factors(graph, summing)}
    sizes = [Counter(op.result.shape[-2:]) for op in summing]
    for v, copy in copies.items():
        if any(size <= Counter(v.shape) for size in sizes):
            sides[v.name] = Side.ORIGINAL
        sides[copy.name] = Side.COPY
    graph, narrow = _widen_statistics(replace(graph, ops=tuple(ops)), copies.values())
    sides |= {v.name: Side.COPY for v in narrow}
    return DuplicatedChains(
        graph,
        {op.result: copies[op.result] for op in summing if op.result in copies},
        {op.result: frozenset(found) for op, found in summing.items()},
        sides,
    )


def _copied_values(graph: Graph, products: Collection[Op], factors: Iterable[Value]) -> list[Value]:
    """Return the values that the copy computes, so that it has these factors.

    They lead from the products to the factors. Reductions are not among them: the copy reads their
    results from memory.
    """
    producers = graph.producers()

    def is_copied(v: Value) -> bool:
        op = producers.get(v)
        if op is None or len(op.results) > 1:
            return False
        return op in products or OPS[op.kind].pattern not in IN_MEMORY

    def operands(v: Value) -> list[Value]:
        op = producers[v]
        return [] if op in products else [x for x in op.inputs if is_copied(x)]

    return list(reachable([f for f in factors if is_copied(f)], operands))


def _values_of_factors(graph: Graph, products: Collection[Op]) -> list[Value]:
    """Return what kernels compute for the factors of products, but not from these products."""
    producers, users = graph.producers(), graph.users()

    def results(v: Value) -> list[Value]:
        return [r for op in users.get(v, ()) for r in op.results]

    def operands(v: Value) -> Sequence[Value]:
        op = producers.get(v)
        return () if op is None or OPS[op.kind].pattern is Pattern.OPAQUE else op.inputs

    factors = [f for op in products for f in factors_of(op)]
    dependent = reachable([op.result for op in products], results)
    return [v for v in reachable(factors, operands) if v not in dependent]


def _widen_statistics(graph: Graph, copies: Collection[Value]) -> tuple[Graph, list[Value]]:
    """Let reductions that copies read have results in float32, if they have half precision.

    Also return the numbers of half precision that copies then read. The original reads them in
    registers, where nothing rounds them: with a rounded maximum, exponentials would differ.
    """
    copied, users, names = set(copies), graph.users(), Names(graph)
    ops: list[Op] = []
    read: dict[Value, Value] = {}  # by copies
    for op in graph.ops:
        if copied.issuperset(op.results):
            ops.append(replace(op, operands=substitute_operands(op.operands, read)))
            continue
        is_read = any(copied.issuperset(u.results) for v in op.results for u in users.get(v, ()))
        if not is_read or not is_reduction(op) or not op.result.dtype.is_reduced_float:
            ops.append(op)
            continue
        result = op.result
        wide_type = replace(result.type, dtype=DType.F32)
        wide = replace(result, type=wide_type, name=names.fresh(f"{result.name}_wide"))
        read[result] = replace(result, name=names.fresh(f"{result.name}_again"))
        attrs = tuple((k, DType.F32 if k == "dtype" else a) for k, a in op.attrs)
        ops.append(replace(op, results=(wide,), attrs=attrs))
        for narrow in (result, read[result]):
            ops.append(Op("convert", (wide,), (narrow,), (("dtype", result.dtype),), op.loc))
    return replace(graph, ops=tuple(ops)), list(read.values())
