"""Plan -> Plan: run launches that read each other's rows tile by tile, with the rows in scratch.

A thread runs adjacent tiles one after the other, and keeps the rows that the next one needs. Rows
between the tiles of two threads are computed by both, so that no thread waits for another. These
are overlapped tiles (Krishnamoorthy et al., "Effective Automatic Parallelization of Stencil
Computations", 2007), with `store_at` and `compute_at` of Halide inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tofuse.analysis.plan_liveness import owners_of
from tofuse.analysis.tile_ranges import GroupRows, tile_chunks
from tofuse.cost.kernel_cost import overlapped
from tofuse.cost.machine import CACHE_LINE, Machine
from tofuse.cost.thresholds import (
    CALL_US_PER_KERNEL_AND_TILE,
    MAX_LAUNCHES_BY_TILES,
    MAX_PREDICTED_TILED_SHARE_OF_SEPARATE_TIME,
    MAX_SHARE_OF_TILES_IN_MEMORY,
    MAX_TILE_SCRATCH_L2_SHARE,
    MEMORY_TIME_OVER_ASSUMED,
    TILE_CHUNKS_PER_THREAD,
    TRIED_TILE_HEIGHTS,
)
from tofuse.ir.dims import product
from tofuse.ir.launch_facts import TileableKernel
from tofuse.ir.plan import Allocate, Launch, Plan, ScratchRows, Step, Tiles
from tofuse.ir.row_access import KernelRows
from tofuse.ir.types import DType
from tofuse.ir.verify_plan import reads
from tofuse.plan.kernel_binding import KernelBinding


def tile_launches(plan: Plan, bindings: Mapping[int, KernelBinding], machine: Machine) -> Plan:
    """Make groups of consecutive launches that run by tiles, where this is predicted to be faster.

    What only launches of the group read is then in scratch, of the size of a tile.
    """
    return _Tiling(plan, bindings, machine).run()


@dataclass(frozen=True)
class _Choice:
    """Tiles of some launches, and the predicted time that they save."""

    launches: tuple[Launch, ...]
    tiles: Tiles
    saved_us: float


@dataclass(eq=False)
class _Tiling:
    plan: Plan
    bindings: Mapping[int, KernelBinding]
    machine: Machine
    steps: list[Step] = field(default_factory=list)
    segment: list[Step] = field(default_factory=list)  # launches and allocations
    groups: int = 0

    def __post_init__(self) -> None:
        self.owners = owners_of(self.plan.steps)
        self.facts: dict[int, TileableKernel | None] = {}
        self.allocations = {s.name: s for s in self.plan.steps if isinstance(s, Allocate)}
        self.readers: dict[str, int] = {}  # how many steps read or write a tensor
        for step in self.plan.steps:
            for name in dict.fromkeys(reads(step)):
                self.readers[name] = self.readers.get(name, 0) + 1

    def run(self) -> Plan:
        for step in self.plan.steps:
            if isinstance(step, (Launch, Allocate)):
                self.segment.append(step)
            else:
                self._end_segment()
                self.steps.append(step)
        self._end_segment()
        return replace(self.plan, steps=tuple(self.steps)) if self.groups else self.plan

    def _end_segment(self) -> None:
        launches = [s for s in self.segment if isinstance(s, Launch)]
        choices = list(self._choices(launches))
        if not choices:
            self.steps += self.segment
        else:
            self._write(choices)
        self.segment = []

    def _write(self, choices: Sequence[_Choice]) -> None:
        """Write the segment, with its allocations before the launches of the first choice."""
        scratch = {s.name for c in choices for s in c.tiles.scratch if not s.is_allocated}
        steps = [s for s in self.segment if not (isinstance(s, Allocate) and s.name in scratch)]
        for choice in choices:
            number = self.groups
            self.groups += 1
            first, last = (steps.index(choice.launches[k]) for k in (0, -1))
            between = [s for s in steps[first:last] if isinstance(s, Allocate)]
            tiles = replace(choice.tiles, group=number)
            launches = [replace(x, group=number) for x in choice.launches]
            steps[first : last + 1] = [*between, tiles, *launches]
        self.steps += steps

    def _choices(self, launches: Sequence[Launch]) -> Iterator[_Choice]:
        """Yield the best tiles of launches from each launch on, one after the other."""
        start = 0
        while start < len(launches) - 1:
            best: _Choice | None = None
            for group in self._candidates(launches[start : start + MAX_LAUNCHES_BY_TILES]):
                found = self._tiles(group)
                if found is not None and (best is None or found.saved_us > best.saved_us):
                    best = found
            if best is not None:
                yield best
            start += 1 if best is None else len(best.launches)

    def _candidates(self, launches: Sequence[Launch]) -> Iterator[tuple[Launch, ...]]:
        """Yield the first 2, 3, ... launches that read more of one another than L2 caches hold.

        The first one is read by another, and the last one reads others.
        """
        cached = self.machine.l2_bytes * self.machine.threads
        for end in range(2, len(launches) + 1):
            group = tuple(launches[:end])
            shared = self._read_by(group)
            if not shared & self._written(group[0]):
                continue
            if not self._reads_of_group(group, group[-1]):
                continue
            if sum(map(self._nbytes, shared)) <= cached:
                continue
            if not self._is_legal(group):
                return
            yield group

    def _facts(self, launch: Launch) -> TileableKernel | None:
        if launch.kernel not in self.facts:
            self.facts[launch.kernel] = self.bindings[launch.kernel].facts.tileable()
        return self.facts[launch.kernel]

    def _written(self, launch: Launch) -> frozenset[str]:
        mask = self.bindings[launch.kernel].facts.write_mask or ()
        pairs = zip(launch.tensors, mask, strict=False)
        return frozenset(t.tensor for t, is_written in pairs if is_written)

    def _reads_of_group(self, group: Sequence[Launch], launch: Launch) -> frozenset[str]:
        """Return what a launch reads that others of a group write."""
        written = frozenset[str]().union(*map(self._written, group))
        return frozenset(t.tensor for t in launch.tensors) & (written - self._written(launch))

    def _is_legal(self, group: Sequence[Launch]) -> bool:
        """Whether rows of each launch run by themselves, and no launch writes what another needs.

        Each tensor has one writer, and only later launches read it.
        """
        written: set[str] = set()
        accessed: set[str] = set()
        for launch in group:
            facts, own = self._facts(launch), self._written(launch)
            names = [t.tensor for t in launch.tensors]
            if facts is None or self.bindings[launch.kernel].facts.write_mask is None:
                return False
            if any(t.offset is not None or t.tensor in self.owners for t in launch.tensors):
                return False
            if own & accessed or any(names.count(n) > 1 for n in own):
                return False
            written |= own
            accessed |= set(names)
        return all(self._writes_rows(x, self._read_by(group)) for x in group)

    def _read_by(self, group: Sequence[Launch]) -> frozenset[str]:
        """Return what launches of a group read that others of it write."""
        return frozenset[str]().union(*(self._reads_of_group(group, x) for x in group))

    def _writes_rows(self, launch: Launch, shared: frozenset[str]) -> bool:
        """Whether each iteration writes bytes of its own of each shared tensor."""
        facts, names = self._facts(launch), [t.tensor for t in launch.tensors]
        if facts is None:
            return False
        accesses = facts.rows.accesses
        writes = [a for a in accesses if a.writes and names[a.buffer] in shared]
        if {a.buffer for a in accesses if a.writes} & {a.buffer for a in accesses if not a.writes}:
            return False  # rows that are computed again would read what was written
        is_single = len({a.buffer for a in writes}) == len(writes)
        return is_single and all(0 < a.high - a.low <= a.step for a in writes)

    def _tiles(self, group: tuple[Launch, ...]) -> _Choice | None:
        """Return the largest tiles whose scratch fits; None if separate launches are as fast."""
        facts = [f for x in group if (f := self._facts(x)) is not None]
        shared = self._read_by(group)
        for launch, own in zip(group, facts, strict=True):
            if any(launch.tensors[k].tensor in shared for k in own.nontemporal):
                return None
        scratch = [n for n in sorted(shared) if self._is_private(n, group)]
        rows = [self._accesses(x, f.rows, shared) for x, f in zip(group, facts, strict=True)]
        ranges = GroupRows(group, rows, scratch)
        threads, height = self.machine.threads, facts[-1].rows.iterations
        limit = MAX_TILE_SCRATCH_L2_SHARE * self.machine.l2_bytes
        separate_us = sum(self._kernel_us(f) + self.machine.parallel_us for f in facts)
        for count in dict.fromkeys(
            -(-height // (n * threads)) * threads for n in TRIED_TILE_HEIGHTS
        ):
            chunks = min(count, threads * TILE_CHUNKS_PER_THREAD)
            tiles = _tile_sizes(ranges, count, chunks) if count >= 2 * threads else None
            if tiles is None or sum(s.nbytes for s in tiles.scratch) > limit:
                continue
            saved_us = separate_us - self._predicted_us(group, facts, tiles, shared, count)
            if saved_us < (1 - MAX_PREDICTED_TILED_SHARE_OF_SEPARATE_TIME) * separate_us:
                return None  # smaller tiles take longer
            return _Choice(group, Tiles(0, count, chunks, tuple(rows), tiles.scratch), saved_us)
        return None

    def _accesses(self, launch: Launch, rows: KernelRows, shared: frozenset[str]) -> KernelRows:
        """Return a launch's accesses to what launches of the group write."""
        names = shared | self._written(launch)
        positions = (k for k, t in enumerate(launch.tensors) if t.tensor in names)
        return rows.of_buffers(frozenset(positions))

    def _is_private(self, name: str, group: Sequence[Launch]) -> bool:
        """Whether the plan allocates a tensor that only launches of the group access."""
        allocation = self.allocations.get(name)
        inside = sum(any(t.tensor == name for t in x.tensors) for x in group)
        return (
            allocation is not None
            and allocation.on_host
            and allocation.dtype is not DType.OTHER
            and name not in self.plan.results
            and self.readers[name] == inside
        )

    def _predicted_us(
        self,
        group: Sequence[Launch],
        facts: Sequence[TileableKernel],
        tiles: _TileSizes,
        shared: frozenset[str],
        count: int,
    ) -> float:
        """Return the predicted time of a group by tiles, whose shared tensors stay in L2 caches."""
        machine = self.machine
        total = (
            machine.parallel_us + CALL_US_PER_KERNEL_AND_TILE * count * len(group) / machine.threads
        )
        total += 2 * tiles.kept_bytes / (machine.l2_rate * machine.threads) / 1e3
        for launch, own, iterations in zip(group, facts, tiles.iterations, strict=True):
            cached = sum(self._nbytes(t.tensor) for t in launch.tensors if t.tensor in shared)
            total += iterations / own.rows.iterations * self._kernel_us(own, cached)
        return total

    def _kernel_us(self, kernel: TileableKernel, cached: int = 0) -> float:
        """Return the time of a kernel that finds so many of its bytes in the L2 caches."""
        machine = self.machine
        far = max(0.0, 1 - cached / max(1, kernel.nbytes)) * kernel.traffic_us
        near = cached / (machine.l2_rate * machine.threads) / 1e3
        return overlapped(kernel.work_us, MEMORY_TIME_OVER_ASSUMED * far + near)

    def _nbytes(self, name: str) -> int:
        allocation = self.allocations.get(name)
        if allocation is None:
            return 0
        nbytes = product((*allocation.shape, allocation.dtype.itemsize))
        return nbytes if isinstance(nbytes, int) else 0


@dataclass(frozen=True)
class _TileSizes:
    """What all tiles of a group do together, and the scratch of a thread.

    `iterations` are those of each launch, `kept_bytes` what a tile finds of the one before.
    """

    iterations: tuple[int, ...]
    kept_bytes: int
    scratch: tuple[ScratchRows, ...]


def _tile_sizes(ranges: GroupRows, count: int, chunks: int) -> _TileSizes | None:
    """Return the sizes of `count` tiles; None if too many of them cannot use scratch.

    The scratch holds up to twice the rows of most tiles. A tile with more, or whose rows are not
    adjacent, as at a periodic edge, uses memory.
    """
    tiles = [t for numbers in tile_chunks(count, chunks) for t in ranges.tiles(numbers, count)]
    scratch: list[ScratchRows] = []
    for name in ranges.scratch:
        windows = [w for t in tiles if (w := t.windows[name]) is not None]
        sizes = sorted(end - first for first, end in windows)
        if not sizes:
            return None
        limit = 2 * sizes[len(sizes) // 2]
        largest = max(n for n in sizes if n <= limit)
        outside = len(tiles) - sum(n <= limit for n in sizes)
        if outside > MAX_SHARE_OF_TILES_IN_MEMORY * count:
            return None
        nbytes = -(-largest // CACHE_LINE) * CACHE_LINE + 2 * CACHE_LINE
        scratch.append(ScratchRows(name, nbytes, bool(outside)))
    iterations = tuple(
        sum(end - first for t in tiles for first, end in t.iterations[k])
        for k in range(len(ranges.rows))
    )
    kept = sum(end - first for t in tiles for first, end in t.kept.values())
    return _TileSizes(iterations, kept, tuple(scratch))
