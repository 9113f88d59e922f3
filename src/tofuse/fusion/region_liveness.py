"""Liveness of values across the regions of a partition, and the peak memory of an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tofuse.analysis.alias import AliasAnalysis, has_effect, is_collective, is_view
from tofuse.cost.memory_traffic import value_bytes
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Graph, Value
from tofuse.ir.region import Region


@dataclass(frozen=True)
class Peak:
    """The most bytes of results held at once, returned ones included.

    `region` runs at the peak; `last_reads` are the values that no later region reads. `early`
    lists the regions before it whose results are unread at the peak, with the bytes saved there
    if they ran later: their results less the inputs that would have to be kept for them.
    """

    nbytes: int
    region: Region | None
    last_reads: frozenset[Value]
    early: tuple[tuple[Region, int], ...]


def find_peak(part: Partition, releasable_inputs: frozenset[str] = frozenset()) -> Peak:
    """Return the peak of a partition.

    `releasable_inputs` names inputs that only these regions hold: the last reader frees them.
    """
    liveness = RegionLiveness(part, releasable_inputs)
    most, region = liveness.peak(part.regions)
    if region is None:
        return Peak(most, None, frozenset(), ())
    return Peak(most, region, liveness.last_reads(region), liveness.early_regions(region))


def peak_bytes(part: Partition, releasable_inputs: frozenset[str] = frozenset()) -> int:
    """Return the most bytes of results held at once; see `find_peak`."""
    return RegionLiveness(part, releasable_inputs).peak(part.regions)[0]


def unfused_peak(graph: Graph) -> int:
    """Return the peak of running each op by itself, views being free; see `find_peak`."""
    ops = [op for op in graph.ops if not is_view(op)]
    regions = tuple(Region("", (op,), op.results) for op in ops)
    return peak_bytes(Partition(graph, regions, AliasAnalysis(graph), ()))


@dataclass(eq=False)
class RegionLiveness:
    """Which region reads and writes which tensor, through views.

    Only tensors made by the regions count, and the releasable inputs.
    """

    part: Partition
    releasable_inputs: frozenset[str]
    reads: dict[Region, tuple[Value, ...]] = field(default_factory=dict)
    writes: dict[Region, tuple[Value, ...]] = field(default_factory=dict)
    readers: dict[Value, list[Region]] = field(default_factory=dict)
    predecessors: dict[Region, set[Region]] = field(default_factory=dict)
    returned: frozenset[Value] = frozenset()  # held until the end
    inputs_held: list[Value] = field(default_factory=list)  # releasable ones that a region reads
    shared: set[Value] = field(default_factory=set)  # memory that regions write in parts

    def __post_init__(self) -> None:
        graph, aliases = self.part.graph, self.part.aliases
        releasable = {v for v in graph.inputs if v.name in self.releasable_inputs}
        all_inputs = set(graph.inputs)
        callers_inputs = all_inputs - releasable
        producers: dict[Value, Region] = {}
        since_effect: list[Region] = []  # the last region with an effect, and those after it
        collective: Region | None = None  # the last one
        for r in self.part.regions:
            roots = [aliases.root(v) for v in r.inputs]
            self.predecessors[r] = {producers[v] for v in roots if v in producers}
            read = dict.fromkeys(map(aliases.owner, r.inputs))
            self.reads[r] = tuple(v for v in read if v not in callers_inputs)
            written = dict.fromkeys(map(aliases.owner, r.outputs))
            self.writes[r] = tuple(v for v in written if v not in all_inputs)
            self.shared |= written.keys() - set(r.outputs)
            for v in self.reads[r]:
                self.readers.setdefault(v, []).append(r)
            producers |= dict.fromkeys(r.outputs, r)
            if is_effectful(r):
                self.predecessors[r] |= set(since_effect)
                since_effect = [r]
            else:
                self.predecessors[r] |= {p for p in since_effect[:1] if is_effectful(p)}
                since_effect.append(r)
            if is_collective(r.ops[0]):
                self.predecessors[r] |= {collective} if collective else set()
                collective = r
        self.returned = aliases.returned
        self.inputs_held = [v for v in releasable if v in self.readers]

    def peak(self, order: Sequence[Region]) -> tuple[int, Region | None]:
        """Return the most bytes held while a region runs, and that region."""
        pending_reads = {v: len(rs) for v, rs in self.readers.items()}
        held = most = sum(map(value_bytes, self.inputs_held))
        peak_region = None
        allocated: set[Value] = set()
        for r in order:
            held += sum(value_bytes(v) for v in self.writes[r] if v not in allocated)
            allocated.update(self.writes[r])
            if held > most:
                most, peak_region = held, r
            for v in self.reads[r]:
                pending_reads[v] -= 1
            held -= sum(value_bytes(v) for v in self._dead_after(r, pending_reads))
        return most, peak_region

    def last_reads(self, region: Region) -> frozenset[Value]:
        """Return the values that a region reads last; see `Peak`."""
        later = set(self.part.regions[self.part.regions.index(region) + 1 :])
        read = [v for v in self.reads[region] if v not in self.returned]
        return frozenset(v for v in read if later.isdisjoint(self.readers[v]))

    def early_regions(self, region: Region) -> tuple[tuple[Region, int], ...]:
        """Return the regions before one whose results it need not hold yet; see `Peak`."""
        number = {r: k for k, r in enumerate(self.part.regions)}
        now = number[region]
        first = {v: min(number[r] for r in rs) for v, rs in self.readers.items()}
        last = {v: max(number[r] for r in rs) for v, rs in self.readers.items()}
        found = []
        for r in self.part.regions[:now]:
            unread = [v for v in self.writes[r] if first.get(v, now + 1) > now]
            unread = [v for v in unread if v not in self.shared]
            unread = [v for v in unread if v in self.returned or v in first]
            freed = [v for v in self.reads[r] if last[v] < now and v not in self.returned]
            saved = sum(map(value_bytes, unread)) - sum(map(value_bytes, freed))
            if saved > 0:
                found.append((r, saved))
        return tuple(sorted(found, key=lambda each: -each[1]))

    def _dead_after(self, r: Region, pending_reads: Mapping[Value, int]) -> list[Value]:
        values = (*self.reads[r], *self.writes[r])
        return [v for v in values if not pending_reads.get(v, 0) and v not in self.returned]


def is_effectful(r: Region) -> bool:
    """Return whether nothing moves across a region. Collectives only keep their own order."""
    return any(has_effect(op) and not is_collective(op) for op in r.ops)
