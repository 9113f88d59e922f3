"""Graph -> regions that hold no more memory than eager: what would, is not fused."""

from __future__ import annotations

from tofuse.fusion.cost import Machine
from tofuse.fusion.order import ordered, peak_bytes
from tofuse.fusion.partition import Answers, partition
from tofuse.fusion.weigh import Costs, Fits
from tofuse.ir.graph import Graph
from tofuse.ir.region import Partition

ROUNDS = 3  # of taking kernels apart; few programs need one


def partition_within(
    graph: Graph,
    fits: Fits,
    machine: Machine,
    limit: int | None,
    held: frozenset[str] = frozenset(),
    fuel: int | None = None,
    fits_gpu: Fits | None = None,
    costs: Costs | None = None,
) -> Partition:
    """Regions in order, whose peak is at most `limit` bytes, or else the lowest one found.

    Where it is above, the kernels whose results live at the peak are taken apart: one with
    several results makes them at once, where eager makes one after the other. `held` names
    inputs that live for these regions alone.
    """
    known: Answers = {}

    def cut(apart: frozenset[str]) -> Partition:
        part = partition(graph, fits, machine, fuel, apart, fits_gpu, costs, known)
        return ordered(part, held)

    apart: frozenset[str] = frozenset()
    best = cut(apart)
    least, causes = peak_bytes(best, held)
    for _ in range(ROUNDS):
        kernels = [r for r in causes if not r.library and len(r.ops) > 1]
        wide = [r for r in kernels if len(r.outputs) > 1 or r is causes[0]]
        names = {v.name for r in wide for op in r.ops for v in op.results}
        if limit is None or least <= limit or names <= apart:
            break
        apart |= names
        part = cut(apart)
        most, causes = peak_bytes(part, held)
        if most < least:
            best, least = part, most
    return best
