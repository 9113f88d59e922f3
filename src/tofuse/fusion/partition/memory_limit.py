"""Partition a graph within eager's peak memory: do not fuse what would exceed it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tofuse.cost.thresholds import (
    MAX_MEMORY_SPLIT_ROUNDS,
    PEAK_TOLERANCE,
    ROW_STATISTICS_SHARE,
    TOLERATED_EXCESS,
)
from tofuse.fusion.order_regions import order_regions
from tofuse.fusion.partition.region_evaluator import RegionEvaluator
from tofuse.fusion.partition.region_split import Split, split_by_peak
from tofuse.fusion.region_liveness import Peak, find_peak
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Graph

# Makes a partition of a graph: with this evaluator, these splits, and concats in place or not.
PartitionGraph = Callable[[Graph, RegionEvaluator, frozenset[Split], bool], Partition]
PartitionWithSplits = Callable[[frozenset[Split]], tuple[Partition, Peak]]


def allowed_peak(eager_peak: int) -> int:
    """Return how many bytes a partition may hold: eager's, and statistics of rows beside them."""
    return eager_peak + max(PEAK_TOLERANCE, eager_peak // ROW_STATISTICS_SHARE)


def exceeds_limit(part: Partition, limit: int, releasable_inputs: frozenset[str]) -> bool:
    """Whether a partition holds more than a tolerated excess beyond eager's peak `limit`."""
    peak = find_peak(part, releasable_inputs).nbytes
    return peak > allowed_peak(limit) + TOLERATED_EXCESS


def partition_within_memory_limit(
    graph: Graph,
    partition_graph: PartitionGraph,
    evaluator: RegionEvaluator,
    limit: int | None,
    releasable_inputs: frozenset[str] = frozenset(),
) -> Partition:
    """Return ordered regions whose peak is at most `limit` bytes, or else the lowest peak found.

    `partition_graph` makes one partition. `releasable_inputs` names inputs that only these regions
    hold. Until the limit is met:

    1. Operands of concats get memory of their own, if that lowers the peak: an in-place operand
       needs the memory of the whole concat.
    2. The cost of single merges is ignored, if that lowers the peak: fused values need no memory.
    3. Kernels are split. A kernel with several results makes all of them at once, where eager
       makes one after the other. Kernels whose results are unread at the peak get one kernel for
       each result; then the kernel that runs at the peak is split in two.
    4. If more than a tolerated excess remains, that kernel is split op by op, if this is enough.
    """

    def partition_with(splits: frozenset[Split]) -> tuple[Partition, Peak]:
        part = partition_graph(graph, current_evaluator, splits, in_place_concats)
        part = order_regions(part, releasable_inputs)
        return part, find_peak(part, releasable_inputs)

    current_evaluator, in_place_concats = evaluator, True
    best, lowest = partition_with(frozenset())
    if limit is None or lowest.nbytes <= limit:
        return best
    if best.aliases.slices:
        in_place_concats = False
        part, peak = partition_with(frozenset())
        in_place_concats = peak.nbytes >= lowest.nbytes
        if not in_place_concats:
            best, lowest = part, peak
    current_evaluator = replace(evaluator, ignore_cost=True)
    part, peak = partition_with(frozenset())
    if peak.nbytes < lowest.nbytes:
        best, lowest = part, peak
    else:
        current_evaluator = evaluator
    best, lowest = _split_over_limit(partition_with, best, lowest, limit, op_by_op=False)
    if lowest.nbytes > limit + TOLERATED_EXCESS:
        part, peak = _split_over_limit(partition_with, best, lowest, limit, op_by_op=True)
        best = part if peak.nbytes <= limit + TOLERATED_EXCESS else best
    return best


def _split_over_limit(
    partition_with: PartitionWithSplits, best: Partition, lowest: Peak, limit: int, op_by_op: bool
) -> tuple[Partition, Peak]:
    """Return the best partition of some rounds that split the kernels which hold too much."""
    part, peak = best, lowest
    splits: frozenset[Split] = frozenset()
    for _ in range(MAX_MEMORY_SPLIT_ROUNDS):
        more = _splits_of_regions_over_limit(part, peak, peak.nbytes - limit, op_by_op)
        if lowest.nbytes <= limit or more <= splits:
            break
        splits |= more
        part, peak = partition_with(splits)
        if peak.nbytes < lowest.nbytes:
            best, lowest = part, peak
    return best, lowest


def _splits_of_regions_over_limit(
    part: Partition, peak: Peak, excess: int, op_by_op: bool
) -> frozenset[Split]:
    """Return splits of the kernels that compute results too early, until they cover the excess.

    If they do not, also return a split of the kernel that runs at the peak.
    """
    splits: set[Split] = set()
    for region, nbytes in peak.early:
        results = [v.name for v in region.outputs]
        if excess > 0 and not region.library and len(results) > 1:
            splits.add(_one_part_each(results))
            excess -= nbytes
    at_peak = peak.region
    if excess > 0 and at_peak is not None and not at_peak.library and len(at_peak.ops) > 1:
        split = None if op_by_op else split_by_peak(at_peak, peak.last_reads, part.aliases.memrefs)
        splits.add(split or _one_part_each(v.name for op in at_peak.ops for v in op.results))
    return frozenset(splits)


def _one_part_each(names: Iterable[str]) -> Split:
    return frozenset(frozenset((name,)) for name in names)
