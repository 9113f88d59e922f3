"""Graph -> regions that hold no more memory than eager: what would, is not fused."""

from __future__ import annotations

from tofuse.fusion.cost import Machine
from tofuse.fusion.neighbours import neighbours
from tofuse.fusion.order import Peak, ordered, peak_of
from tofuse.fusion.partition import Answers, partition
from tofuse.fusion.weigh import Costs, Fits
from tofuse.ir.graph import Graph
from tofuse.ir.region import Partition

ROUNDS = 6  # of taking kernels apart; few programs need one

Apart = frozenset[frozenset[str]]  # names of results of ops, no two of a set in one kernel


def partition_within(
    graph: Graph,
    fits: Fits,
    machine: Machine,
    limit: int | None,
    held: frozenset[str] = frozenset(),
    fuel: int | None = None,
    fits_gpu: Fits | None = None,
    costs: Costs | None = None,
    exact: bool = False,
) -> Partition:
    """Regions in order, whose peak is at most `limit` bytes, or else the lowest one found.

    Where it is above, cats do not hold room for their pieces before these are there, if that is
    less; and merges are not weighed one by one: what is fused needs no memory between.
    If that is not enough, kernels are taken apart. One with several results makes them at once,
    where eager makes one after the other: first those that hold what nobody reads yet at the peak,
    a kernel for each result; then the kernel that runs at the peak, an op at a time. `held` names
    inputs that live for these regions alone.
    """

    def cut(apart: Apart, weigh: Costs | None, known: Answers) -> tuple[Partition, Peak]:
        ask = fits_gpu, weigh, known, placing, exact
        part = ordered(partition(graph, fits, machine, fuel, apart, *ask), held)
        return part, peak_of(part, held)

    graph = neighbours(graph)
    apart: Apart = frozenset()
    known: Answers = {}
    placing = True
    best, least = cut(apart, costs, known)
    if limit is None or least.nbytes <= limit:
        return best
    if best.parts:
        placing = False
        part, peak = cut(apart, costs, known)
        placing = peak.nbytes >= least.nbytes
        if not placing:
            best, least = part, peak
    whole: Answers = {}
    part, peak = cut(apart, None, whole)
    if peak.nbytes < least.nbytes:
        best, least, costs, known = part, peak, None, whole
    peak = least
    for _ in range(ROUNDS):
        more = _culprits(peak, peak.nbytes - limit)
        if least.nbytes <= limit or more <= apart:
            break
        apart |= more
        part, peak = cut(apart, costs, known)
        if peak.nbytes < least.nbytes:
            best, least = part, peak
    return best


def _culprits(peak: Peak, excess: int) -> Apart:
    """Kernels by what they hold too early, until that is the excess; the one at the peak if not."""
    found: set[frozenset[str]] = set()
    for region, nbytes in peak.early:
        results = {v.name for v in region.outputs}
        if excess > 0 and not region.library and len(results) > 1:
            found.add(frozenset(results))
            excess -= nbytes
    at = peak.region
    if excess > 0 and at is not None and not at.library and len(at.ops) > 1:
        found.add(frozenset(v.name for op in at.ops for v in op.results))
    return frozenset(found)
