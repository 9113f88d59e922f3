"""Partition -> Partition: regions in the order that holds the least memory at once."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tofuse.analysis.alias import is_view, storages
from tofuse.ir.dims import hint
from tofuse.ir.graph import Graph, Value
from tofuse.ir.region import Partition, Region, lends

NOTICED = 256 * 1024  # bytes for which regions are moved apart that may be launched as one


def ordered(part: Partition, held: frozenset[str] = frozenset()) -> Partition:
    """Program order, unless freeing early or making late lowers the peak: neighbours find values
    in the cache."""
    lives = _Lives(part, held)
    best, most = list(part.regions), lives.peak(part.regions)[0]
    early = lives.early()
    if (nbytes := lives.peak(early)[0]) < most:
        best, most = early, nbytes
    late = lives.late(best)
    if lives.peak(late)[0] <= most - NOTICED:
        best = late
    return part if best == list(part.regions) else replace(part, regions=tuple(best))


@dataclass(frozen=True)
class Peak:
    """The most bytes of results, returned or not, held at once; the region that runs then, and
    what it reads as the last one; and of those before it, the ones whose results nobody has read
    by then: how many bytes fewer would be held if these were made later, from what their regions
    read."""

    nbytes: int
    region: Region | None
    last: frozenset[Value]
    early: tuple[tuple[Region, int], ...]


def peak_of(part: Partition, held: frozenset[str] = frozenset()) -> Peak:
    """`held` names inputs that live for these regions alone."""
    lives = _Lives(part, held)
    nbytes, region = lives.peak(part.regions)
    if region is None:
        return Peak(nbytes, None, frozenset(), ())
    return Peak(nbytes, region, lives.last_read(region), lives.early_at(region))


def peak_bytes(part: Partition, held: frozenset[str] = frozenset()) -> int:
    """The most bytes of results held at once; `held` as above."""
    return _Lives(part, held).peak(part.regions)[0]


def unfused_peak(graph: Graph, held: frozenset[str] = frozenset()) -> int:
    """The peak of running every op by itself, views as views; `held` as in `peak_of`."""
    ops = [op for op in graph.ops if not is_view(op)]
    regions = tuple(Region("", (op,), op.results) for op in ops)
    return peak_bytes(Partition(graph, regions, storages(graph), ()), held)


@dataclass(eq=False)
class _Lives:
    """Who reads what, views looked through."""

    part: Partition
    held: frozenset[str]
    reads: dict[Region, tuple[Value, ...]] = field(default_factory=dict)
    makes: dict[Region, tuple[Value, ...]] = field(default_factory=dict)
    readers: dict[Value, list[Region]] = field(default_factory=dict)
    before: dict[Region, set[Region]] = field(default_factory=dict)
    kept: set[Value] = field(default_factory=set)  # until the end
    given: list[Value] = field(default_factory=list)  # inputs that are held
    homes: dict[Value, Value] = field(default_factory=dict)  # of parts of a tensor: which tensor

    def __post_init__(self) -> None:
        makers: dict[Value, Region] = {}
        since: list[Region] = []  # the last effect, and what stands behind it
        given = {v for v in self.part.graph.inputs if v.name in self.held}
        self.homes = {v: place.root for v, place in self.part.parts.items()}
        for op in filter(lends, self.part.graph.ops):
            (self.homes[op.result],) = self._memory((self._root(op.inputs[0]),))
        theirs = {v for v in self.part.graph.inputs if v not in given}
        for r in self.part.regions:
            roots = tuple(dict.fromkeys(self._root(v) for v in r.inputs))
            self.before[r] = {makers[v] for v in roots if v in makers}
            read = self._memory(v for v in roots if v in makers or v in given)
            self.reads[r] = tuple(v for v in read if v not in theirs)
            made = self._memory(r.outputs)
            self.makes[r] = tuple(v for v in made if v not in theirs and v not in given)
            for v in self.reads[r]:
                self.readers.setdefault(v, []).append(r)
            makers |= dict.fromkeys(r.outputs, r)
            if _has_effect(r):
                self.before[r] |= set(since)
                since = [r]
            else:
                self.before[r] |= {b for b in since[:1] if _has_effect(b)}
                since.append(r)
        outputs = [v for v in self.part.graph.outputs if v is not None]
        self.kept = set(self._memory(self._root(v) for v in outputs))
        self.given = [v for v in given if v in self.readers]

    def _root(self, v: Value) -> Value:
        place = self.part.storage.get(v)
        return v if place is None else place.root

    def _memory(self, roots: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(self.homes.get(v, v) for v in roots))

    def peak(self, order: Sequence[Region]) -> tuple[int, Region | None]:
        """The most bytes held while a region runs, and that region."""
        waiting = {v: len(rs) for v, rs in self.readers.items()}
        held = most = sum(map(_nbytes, self.given))
        running = None
        begun: set[Value] = set()
        for r in order:
            held += sum(_nbytes(v) for v in self.makes[r] if v not in begun)
            begun.update(self.makes[r])
            if held > most:
                most, running = held, r
            for v in self.reads[r]:
                waiting[v] -= 1
            held -= sum(_nbytes(v) for v in self._dead(r, waiting))
        return most, running

    def last_read(self, region: Region) -> frozenset[Value]:
        """See `Peak.last`."""
        after = set(self.part.regions[self.part.regions.index(region) + 1 :])
        read = [v for v in self.reads[region] if v not in self.kept]
        return frozenset(v for v in read if after.isdisjoint(self.readers[v]))

    def early_at(self, region: Region) -> tuple[tuple[Region, int], ...]:
        """See `Peak.early`."""
        number = {r: k for k, r in enumerate(self.part.regions)}
        now = number[region]
        first = {v: min(number[r] for r in rs) for v, rs in self.readers.items()}
        last = {v: max(number[r] for r in rs) for v, rs in self.readers.items()}
        joined = set(self.homes.values())
        found = []
        for r in self.part.regions[:now]:
            unread = [v for v in self.makes[r] if first.get(v, now + 1) > now]
            unread = [v for v in unread if v not in joined]
            unread = [v for v in unread if v in self.kept or v in first]
            gone = [v for v in self.reads[r] if last[v] < now and v not in self.kept]
            saved = sum(map(_nbytes, unread)) - sum(map(_nbytes, gone))
            if saved > 0:
                found.append((r, saved))
        return tuple(sorted(found, key=lambda each: -each[1]))

    def early(self) -> list[Region]:
        """Among the regions that can run always the one that leaves the least held.

        Equal ones go by program order. A region's balance only falls, when it becomes the last
        reader of something, and then it is queued again.
        """
        number = {r: k for k, r in enumerate(self.part.regions)}
        waiting = {v: len(rs) for v, rs in self.readers.items()}
        missing = {r: len(bs) for r, bs in self.before.items()}
        after: dict[Region, list[Region]] = {r: [] for r in number}
        for r in number:
            for b in sorted(self.before[r], key=number.__getitem__):
                after[b].append(r)
        begun: set[Value] = set()
        parts: dict[Value, list[Region]] = {v: [] for v in self.homes.values()}
        for r in number:
            for v in (v for v in self.makes[r] if v in parts):
                parts[v].append(r)
        queue = [(self._balance(r, waiting, begun), number[r], r) for r in number if not missing[r]]
        heapq.heapify(queue)
        order: list[Region] = []
        done: set[Region] = set()
        while queue:
            _, _, r = heapq.heappop(queue)
            if r in done:
                continue
            done.add(r)
            order.append(r)
            changed = list(after[r])
            for v in (v for v in self.makes[r] if v in parts and v not in begun):
                changed += [u for u in parts[v] if u not in done]
            begun.update(self.makes[r])
            for a in after[r]:
                missing[a] -= 1
            for v in self.reads[r]:
                waiting[v] -= 1
                if waiting[v] == 1:
                    changed += [u for u in self.readers[v] if u not in done]
            for u in changed:
                if not missing[u]:
                    heapq.heappush(queue, (self._balance(u, waiting, begun), number[u], u))
        return order

    def late(self, order: Sequence[Region]) -> list[Region]:
        """Regions that free nothing stand just before the first that must come after them."""
        number = {r: k for k, r in enumerate(order)}
        last = {v: max(rs, key=number.__getitem__) for v, rs in self.readers.items()}
        joined = set(self.homes.values())
        places = dict(number)
        wanted: dict[Region, int] = {}  # the place of the first that must come after
        for r in reversed(order):
            frees = any(last[v] is r and v not in self.kept for v in self.reads[r])
            if not frees and not _has_effect(r) and joined.isdisjoint(self.makes[r]):
                places[r] = wanted.get(r, number[r])
            for b in self.before[r]:
                wanted[b] = min(places[r], wanted.get(b, places[r]))
        return sorted(order, key=lambda r: (places[r], number[r]))

    def _balance(self, r: Region, waiting: dict[Value, int], begun: Container[Value]) -> int:
        """Bytes held after a region more than before, if it runs now."""
        fresh = [v for v in self.makes[r] if v not in begun]
        made = sum(_nbytes(v) for v in fresh if v in self.kept or v in self.readers)
        last = [v for v in self.reads[r] if waiting[v] == 1 and v not in self.kept]
        return made - sum(map(_nbytes, last))

    def _dead(self, r: Region, waiting: dict[Value, int]) -> list[Value]:
        values = (*self.reads[r], *self.makes[r])
        return [v for v in values if not waiting.get(v, 0) and v not in self.kept]


def _has_effect(r: Region) -> bool:
    return any(("effect", True) in op.attrs for op in r.ops)


def _nbytes(v: Value) -> int:
    return hint(v.type.nbytes)
