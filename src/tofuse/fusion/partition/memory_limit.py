"""Graph -> regions that hold no more memory than eager: what would, is not fused."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tofuse.cost.nest import Machine
from tofuse.fusion.partition.partitioner import Answers, partition
from tofuse.fusion.partition.profitability import Costs, Fits
from tofuse.fusion.partition.region_split import Split, in_two
from tofuse.fusion.region_order import Peak, ordered, peak_of
from tofuse.fusion.split_reductions import neighbours
from tofuse.ir.graph import Graph
from tofuse.ir.region import Partition

SMALL = 1 << 20  # bytes above the limit for which no kernel is worth taking apart wholly
ROUNDS = 6  # of taking kernels apart; few programs need one

Apart = frozenset[Split]


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
    a kernel for each result; then the kernel that runs at the peak, in two. Where more than little
    is missing then, it is taken apart an op at a time, if that is enough. `held` names inputs that
    live for these regions alone.
    """

    def cut(apart: Apart) -> tuple[Partition, Peak]:
        ask = fits_gpu, costs, known, placing, exact
        part = ordered(partition(graph, fits, machine, fuel, apart, *ask), held)
        return part, peak_of(part, held)

    graph = neighbours(graph)
    known: Answers = {}
    placing = True
    best, least = cut(frozenset())
    if limit is None or least.nbytes <= limit:
        return best
    if best.parts:
        placing = False
        part, peak = cut(frozenset())
        placing = peak.nbytes >= least.nbytes
        if not placing:
            best, least = part, peak
    weighed = costs, known
    costs, known = None, {}
    part, peak = cut(frozenset())
    if peak.nbytes < least.nbytes:
        best, least = part, peak
    else:
        costs, known = weighed
    found, peak = _taken_apart(cut, best, least, limit, True)
    if peak.nbytes > limit + SMALL:
        wholly, lower = _taken_apart(cut, found, peak, limit, False)
        found = wholly if lower.nbytes <= limit + SMALL else found
    return found


def _taken_apart(
    cut: Callable[[Apart], tuple[Partition, Peak]],
    best: Partition,
    least: Peak,
    limit: int,
    gently: bool,
) -> tuple[Partition, Peak]:
    """The best of some rounds of taking kernels apart that hold too much."""
    part, peak = best, least
    apart: Apart = frozenset()
    for _ in range(ROUNDS):
        more = _culprits(part, peak, peak.nbytes - limit, gently)
        if least.nbytes <= limit or more <= apart:
            break
        apart |= more
        part, peak = cut(apart)
        if peak.nbytes < least.nbytes:
            best, least = part, peak
    return best, least


def _culprits(part: Partition, peak: Peak, excess: int, gently: bool) -> Apart:
    """Kernels by what they hold too early, until that is the excess; the one at the peak if not."""
    found: set[Split] = set()
    for region, nbytes in peak.early:
        results = [v.name for v in region.outputs]
        if excess > 0 and not region.library and len(results) > 1:
            found.add(_each(results))
            excess -= nbytes
    at = peak.region
    if excess > 0 and at is not None and not at.library and len(at.ops) > 1:
        halves = in_two(at, peak.last, part.storage) if gently else None
        found.add(halves or _each(v.name for op in at.ops for v in op.results))
    return frozenset(found)


def _each(names: Iterable[str]) -> Split:
    return frozenset(frozenset((name,)) for name in names)
