"""Choose the products that kernels compute instead of the library.

A library reads its operands from memory. A weight that the program computes, such as the numbers
of quantized codes, is then written and read once more, at several times the bytes of the codes.
The time of a product of few rows is the time to read its weight, and libraries read some dtypes
slowly. Some products of many rows libraries compute without the processor's vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tofuse.analysis.alias import is_view, view_chain
from tofuse.analysis.reachability import reachable
from tofuse.cost.library import op_us
from tofuse.cost.target_costs import CostsOf
from tofuse.cost.thresholds import MAX_BLOCKED_FLOAT32_WEIGHT_L2_SHARE, MIN_PRODUCT_GAIN
from tofuse.graph_partition import Partition
from tofuse.ir.dims import size_hint
from tofuse.ir.fusion_hints import fusion_forbidden
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.region import Region, Side
from tofuse.ir.rules import Reason, Rule
from tofuse.ir.types import DType
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.chained_products import chained_products, separate_chains
from tofuse.passes.contract_products import contract_products, is_contractible
from tofuse.passes.duplicate_chains import DuplicatedChains, duplicate_chains
from tofuse.passes.expand_attention import attention_calls, expand_attention, separate_attention
from tofuse.passes.product_ops import factors_of, finished_results, weight_of

SOURCES = (Pattern.OPAQUE, Pattern.SOURCE, Pattern.RANDOM)


@dataclass(frozen=True, eq=False)
class Contractions:
    """The partition of a graph in which kernels compute products.

    `reasons` are why products stay calls of the library, by their factors. `sides` are those of
    results, by their names.
    """

    partition: Partition
    reasons: Mapping[tuple[Value, Value], Reason]
    sides: Mapping[str, Side] = field(default_factory=dict)


def choose_contractions(
    graph: Graph,
    form_regions: Callable[[Graph, Mapping[str, Side]], Partition],
    region_us: Callable[[Region, Partition], float],
    costs_of: CostsOf,
    rejection: Reason | None = None,
    *,
    trains: bool = False,
    single: frozenset[Value] = frozenset(),
) -> Contractions:
    """Form regions of a graph in which kernels compute products, unless a `rejection` forbids it.

    A product stays a call of the library if it cannot join the kernel that computes its weight or
    the one that reads its result, or if it has many rows and `region_us`, the predicted time of its
    kernel, is more than the call's. Chains that begin with `single` products are computed once. A
    kernel of a graph that `trains` sums over the rows of products, and does not run by blocks.
    """
    reasons = _general_reasons(graph, costs_of)
    if rejection is not None:
        return Contractions(form_regions(graph, {}), dict.fromkeys(reasons, rejection))
    duplicated = duplicate_chains(graph, costs_of, single)
    original, graph, sides = graph, duplicated.graph, duplicated.sides
    decoded, faster = decoded_products(graph, costs_of), faster_products(graph, costs_of, trains)
    producers, candidates = graph.producers(), chained_products(graph, costs_of)
    dependent = _dependents_in_kernels(graph, candidates)
    alone = frozenset(v for v in decoded | faster if weight_of(producers[v]) not in dependent)
    few = frozenset(v for v in alone if _has_few_rows(producers[v], producers, costs_of))
    chosen, attention = alone | candidates, attention_calls(graph, costs_of)
    choose_again = partial(
        choose_contractions,
        *(original, form_regions, region_us, costs_of, rejection),
        trains=trains,
    )
    if failed := _failed_copies(duplicated, chosen):
        return choose_again(single=single | duplicated.beside(failed))

    def form(products: frozenset[Value], attention: frozenset[Value]) -> Partition:
        return form_regions(expand_attention(_contract(graph, products, few), attention), sides)

    part = form(chosen, attention)
    unchained = separate_chains(part, candidates)
    if decoded and unchained - alone:  # their kernels may have taken the loops of decoded weights
        part = form(chosen - (unchained - alone), attention)
    alone -= candidates - unchained
    separate = _separate_products(part, alone) & decoded - faster
    rejected = dict.fromkeys(separate, Rule.SEPARATE_WEIGHT())
    rejected |= dict.fromkeys(unchained - alone, Rule.SEPARATE_CHAIN())
    rejected |= _slower_products(part, alone - few, region_us, costs_of)
    kept = chosen - rejected.keys()
    if failed := _failed_copies(duplicated, kept):
        return choose_again(single=single | duplicated.beside(failed))
    reasons |= {factors_of(producers[v]): reason for v, reason in rejected.items()}
    separate = separate_attention(graph, part, attention)
    if rejected or separate:
        part = form(kept, attention - separate)
    return Contractions(part, reasons, sides)


def _failed_copies(duplicated: DuplicatedChains, chosen: frozenset[Value]) -> set[Value]:
    """Return the copied products that are not chosen, or whose copy is not chosen."""
    return {v for v, copy in duplicated.copies.items() if not {v, copy} <= chosen}


def _general_reasons(graph: Graph, costs_of: CostsOf) -> dict[tuple[Value, Value], Reason]:
    """Return why products whose weight is computed stay in the library, by their factors."""
    found: dict[tuple[Value, Value], Reason] = {}
    producers = graph.producers()
    for op in (op for op in graph.ops if op.kind == "opaque" and is_contractible(op)):
        costs, weight = costs_of(op.result.type.device), weight_of(op)
        if not costs.max_contracted_rows or not _is_computed(weight, op, producers):
            continue
        if _has_few_rows(op, producers, costs_of) or _runs_by_blocks(op, costs_of):
            found[factors_of(op)] = Rule.SHARED_WEIGHT()
        else:
            found[factors_of(op)] = Rule.NO_BLOCKS()
    return found


def _contract(graph: Graph, chosen: frozenset[Value], few: frozenset[Value]) -> Graph:
    """Replace products by contractions; those of few rows do not round their factors."""
    return contract_products(contract_products(graph, chosen - few), chosen & few, widen=True)


def _slower_products(
    part: Partition,
    chosen: frozenset[Value],
    region_us: Callable[[Region, Partition], float],
    costs_of: CostsOf,
) -> dict[Value, Reason]:
    """Return the chosen products whose kernel takes longer than separate calls, with both times.

    These are the library's for the products, and kernels for what the kernel computes beside them.
    """
    users = part.graph.users()

    found: dict[Value, Reason] = {}
    for region in part.regions:
        products = [op for op in region.ops if op.kind == "contract"]
        reached = [v for op in products for v in finished_results(users, op.result)]
        results = chosen.intersection(reached)
        if not results:
            continue
        machine = costs_of(products[0].result.type.device).machine
        rest = [op for op in region.ops if op not in products]
        parts = _connected_parts(rest, region, users)
        separate = sum(op_us(op, machine) for op in products)
        separate += sum(region_us(r, part) for r in parts)
        kernel = region_us(region, part)
        if kernel * (1.0 if parts else MIN_PRODUCT_GAIN) > separate:
            reason = Rule.SLOWER_PRODUCT(f"{separate:,.1f}", f"{kernel:,.1f}")
            found |= dict.fromkeys(results, reason)
    return found


def _connected_parts(
    ops: Sequence[Op], region: Region, users: Mapping[Value, Sequence[Op]]
) -> list[Region]:
    """Return the regions of some ops of a region; ops are in one if one reads the other's result.

    A part of views only is left out.
    """
    part_of: dict[Op, set[Op]] = {}
    producers = {r: op for op in ops for r in op.results}
    for op in ops:
        joined = {id(part): part for v in op.inputs if (part := part_of.get(producers.get(v, op)))}
        *smaller, largest = sorted(joined.values(), key=len) or [set[Op]()]
        largest.update(*smaller, (op,))
        part_of |= dict.fromkeys((op, *(o for part in smaller for o in part)), largest)
    found = []
    for part in {id(part): part for part in part_of.values()}.values():
        inside = tuple(op for op in ops if op in part)
        results = [r for op in inside for r in op.results]
        read = [v for v in results if v in region.outputs or not part.issuperset(users.get(v, ()))]
        stored = dict.fromkeys(view_chain(v, producers)[-1] for v in read)
        if not all(map(is_view, inside)):
            found.append(Region(region.name, inside, tuple(v for v in stored if v in results)))
    return found


def faster_products(graph: Graph, costs_of: CostsOf, trains: bool = False) -> frozenset[Value]:
    """Return the results of products with weights in memory that kernels compute faster."""
    products = (op for op in graph.ops if op.kind == "opaque" and is_contractible(op))
    return frozenset(op.result for op in products if _is_faster(op, costs_of, trains))


def _is_faster(product: Op, costs_of: CostsOf, trains: bool) -> bool:
    weight, rows = weight_of(product), product.result.shape[-2]
    costs, elements = costs_of(weight.type.device), size_hint(weight.type.numel)
    limits = costs.streamed_rows.get(weight.dtype, ())
    most = next((most for limit, most in limits if elements <= limit), 0)
    if isinstance(rows, int) and 0 < rows <= most and elements and weight.layout[-2] == 1:
        return True
    is_shared = len(weight.shape) == 2
    if weight.dtype is DType.F32:
        most_bytes = MAX_BLOCKED_FLOAT32_WEIGHT_L2_SHARE * costs.machine.l2_bytes
        is_shared = is_shared and not trains and DType.F32.itemsize * elements <= most_bytes
    return is_shared and size_hint(rows) >= costs.blocked_rows.get(weight.dtype, math.inf)


def decoded_products(graph: Graph, costs_of: CostsOf) -> frozenset[Value]:
    """Return the results of products whose weight a kernel computes.

    All readers of the weight must be such products: others would need it in memory.
    """
    producers, users = graph.producers(), graph.users()
    candidates = [op for op in graph.ops if op.kind == "opaque" and is_contractible(op)]
    found = {
        op
        for op in candidates
        if _has_few_rows(op, producers, costs_of) or _runs_by_blocks(op, costs_of)
    }
    found = {op for op in found if _is_computed(weight_of(op), op, producers)}
    outputs = frozenset(v for v in graph.outputs if v is not None)
    while True:
        kept = {
            op for op in found if _is_read_only_by(weight_of(op), found, users, producers, outputs)
        }
        if kept == found:
            return frozenset(op.result for op in found)
        found = kept


def _separate_products(part: Partition, chosen: frozenset[Value]) -> frozenset[Value]:
    """Return the chosen products that are not in a kernel that computes their weight."""
    producers, users = part.graph.producers(), part.graph.users()
    region_of = {op: region for region in part.regions for op in region.ops}

    def computed_from(v: Value) -> list[Value]:
        return [] if v in chosen else [r for op in users.get(v, ()) for r in op.results]

    separate: list[Value] = []
    for op in (op for op in part.graph.ops if op.kind == "contract"):
        weight = producers.get(_unwidened(op.inputs[1], producers))
        if weight is None or region_of.get(weight) is not region_of[op]:
            separate.append(op.result)
    reached = reachable(separate, computed_from)
    return chosen.intersection(reached)


def _unwidened(weight: Value, producers: Mapping[Value, Op]) -> Value:
    """Return the weight itself: without views, and without the widening to float32."""
    weight = view_chain(weight, producers)[-1]
    op = producers.get(weight)
    if op is None or op.kind != "convert":
        return weight
    source = view_chain(op.inputs[0], producers)[-1]
    return source if source.dtype.is_reduced_float and source in producers else weight


def _has_few_rows(product: Op, producers: Mapping[Value, Op], costs_of: CostsOf) -> bool:
    """Whether a product has at most the rows that a kernel computes as fast as a library.

    Products of a batch that share a weight have their rows together.
    """
    costs, weight = costs_of(product.result.type.device), weight_of(product)
    rows, distinct = product.result.shape[-2], _source_of_broadcast(weight, producers)
    most = costs.max_contracted_rows
    if weight.layout[-2] != 1:
        most = costs.max_contracted_rows_by_columns
    most = min(most, costs.tiled_rows.get(product.result.dtype, most + 1) - 1)
    if not isinstance(rows, int) or rows == 0:
        return False
    sharing = size_hint(weight.type.numel) // max(1, size_hint(distinct.type.numel))
    return rows * max(1, sharing) <= most


def _runs_by_blocks(product: Op, costs_of: CostsOf) -> bool:
    """Whether a kernel computes a product by blocks, as fast as the library."""
    return product.result.dtype in costs_of(product.result.type.device).blocked_dtypes


def _source_of_broadcast(weight: Value, producers: Mapping[Value, Op]) -> Value:
    """Return the value that a weight repeats, or the weight."""
    while (op := producers.get(weight)) is not None:
        if OPS[op.kind].pattern not in (Pattern.VIEW, Pattern.BROADCAST) or op.kind == "slice":
            break
        weight = op.inputs[0]
    return weight


def _is_computed(weight: Value, product: Op, producers: Mapping[Value, Op]) -> bool:
    """Whether an op of a kernel computes the weight of a product."""
    op = producers.get(view_chain(weight, producers)[-1])
    if op is None or OPS[op.kind].pattern in SOURCES:
        return False
    return not fusion_forbidden(op, product)


def _dependents_in_kernels(graph: Graph, products: frozenset[Value]) -> dict[Value, None]:
    """Return products, and what kernels compute from them."""
    users = graph.users() if products else {}

    def results(v: Value) -> list[Value]:
        read_by = (op for op in users.get(v, ()) if OPS[op.kind].pattern not in SOURCES)
        return [r for op in read_by for r in op.results]

    return reachable(products, results)


def _is_read_only_by(
    weight: Value,
    products: Collection[Op],
    users: Mapping[Value, Sequence[Op]],
    producers: Mapping[Value, Op],
    outputs: Collection[Value],
) -> bool:
    """Whether these products alone read a weight, in any of its views."""
    work = [view_chain(weight, producers)[-1]]
    while work:
        value = work.pop()
        if value in outputs:
            return False
        for user in users.get(value, ()):
            if is_view(user):
                work.append(user.result)
            elif user not in products or user.inputs.count(value) != 1 or weight_of(user) != value:
                return False
    return True
