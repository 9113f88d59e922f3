"""Partition a graph into regions, each of them one kernel or one library call."""

from __future__ import annotations

from collections.abc import Collection

from tofuse.analysis.alias import concat_slices, memrefs_of
from tofuse.cost.machine import Machine
from tofuse.fusion.concat.eliminate_concats import eliminate_concats, eliminate_stored_concats
from tofuse.fusion.fold_epilogues import fold_epilogues
from tofuse.fusion.partition.graph_index import GraphIndex, index_graph
from tofuse.fusion.partition.groups import Group
from tofuse.fusion.partition.grow import grow
from tofuse.fusion.partition.merge_legality import MergeLegality, SplitConstraints
from tofuse.fusion.partition.profitability import CostOracles, EstimateCost, Reject
from tofuse.fusion.partition.region_evaluator import EvaluationCache, RegionEvaluator
from tofuse.fusion.partition.region_split import Split
from tofuse.fusion.partition.sibling_fusion import fuse_siblings
from tofuse.fusion.partition.verdicts import edge_verdicts, rejected_hints, sibling_verdict
from tofuse.fusion.region_names import region_name
from tofuse.fusion.rounding import values_to_round
from tofuse.fusion.views.duplicate_ranges import duplicate_ranges
from tofuse.fusion.views.duplicate_views import duplicate_views
from tofuse.fusion.views.materialize_views import materialize_views
from tofuse.ir.graph import Graph
from tofuse.ir.region import Partition, Region


def partition(
    graph: Graph,
    reject: Reject,
    machine: Machine,
    fuel: int | None = None,
    splits: Collection[Split] = (),
    reject_on_gpu: Reject | None = None,
    estimate_cost: EstimateCost | None = None,
    cache: EvaluationCache | None = None,
    in_place_concats: bool = True,
    exact: bool = False,
) -> Partition:
    """Return regions in an order that runs. Deterministic: depends on the program alone.

    `reject` and `reject_on_gpu` judge candidate kernels; without the latter, no kernels are made
    for GPUs. `estimate_cost` decides merges whose kernel would vectorize poorly on the CPU.
    `cache` keeps evaluations for further calls.
    `fuel` limits the merges to the first ones. No kernel computes results of two parts of one of
    `splits`. `in_place_concats`: operands of concats may be written into the concat; otherwise
    each has memory of its own. `exact`: half-precision values are rounded after every op.
    """
    oracles = CostOracles(reject, reject_on_gpu, estimate_cost)
    constraints = SplitConstraints(splits)
    cache = {} if cache is None else cache
    part = _partition_once(
        eliminate_concats(graph, in_place_concats),
        oracles,
        machine,
        None,
        constraints,
        cache,
        exact,
    )
    rewritten = fold_epilogues(part)
    rewritten = eliminate_stored_concats(rewritten, part) if in_place_concats else rewritten
    if rewritten is not part.graph or fuel is not None:
        part = _partition_once(rewritten, oracles, machine, fuel, constraints, cache, exact)
    return part


def _partition_once(
    graph: Graph,
    oracles: CostOracles,
    machine: Machine,
    fuel: int | None,
    splits: SplitConstraints,
    cache: EvaluationCache,
    exact: bool,
) -> Partition:
    index = _with_duplicate_views(graph)
    graph = index.graph
    rounded = values_to_round(graph, exact)
    evaluator = RegionEvaluator(index, oracles, rounded, cache)
    growth = grow(index, MergeLegality(index, splits, oracles), evaluator)
    fuse_siblings(growth)
    if fuel is not None:
        growth.undo_merges(fuel)
    groups = growth.groups.topological_order()
    verdicts = edge_verdicts(growth, machine)
    return Partition(
        graph,
        tuple(_region(index, g, k) for k, g in enumerate(groups)),
        index.storage,
        tuple(verdicts.values()),
        tuple(verdicts.get(edge) or sibling_verdict(*edge) for edge in growth.merges),
        rejected_hints(growth, verdicts),
        concat_slices(graph),
        rounded,
    )


def _with_duplicate_views(graph: Graph) -> GraphIndex:
    """Materialize and duplicate views where kernels need it; return the index of the result."""
    storage = memrefs_of(graph)
    materialized = duplicate_ranges(materialize_views(graph, storage))
    storage = storage if materialized is graph else memrefs_of(materialized)
    duplicated = duplicate_views(materialized, storage)
    storage = storage if duplicated is materialized else memrefs_of(duplicated)
    return index_graph(duplicated, storage)


def _region(index: GraphIndex, group: Group, number: int) -> Region:
    if group.library:
        (op,) = group.ops
        name = str(op.attr("target")).split(".")[1]
        return Region(f"{name}_{number}", (op,), op.results, library=True)
    return index.make_region(group.ops, region_name(group.ops, number))
