"""The iterations that each launch of a group runs for a tile, and the rows that it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tofuse.ir.plan import Launch
from tofuse.ir.row_access import Interval, KernelRows, RowAccess, merged, without


@dataclass(frozen=True)
class TileRanges:
    """The iterations of each launch for a tile, and the bytes of the tensors between launches.

    `windows` are the bytes of each scratch tensor that the tile reads or writes; None if they are
    not one interval, or exceed the scratch. `kept` is the part of each window that the tile before
    has computed.
    """

    iterations: tuple[tuple[Interval, ...], ...]
    windows: Mapping[str, Interval | None]
    kept: Mapping[str, Interval]


class GroupRows:
    """Launches of a group, with their accesses to the tensors that the group writes.

    `scratch` are the tensors that only the group reads.
    """

    def __init__(
        self, launches: Sequence[Launch], rows: Sequence[KernelRows], scratch: Sequence[str]
    ) -> None:
        self.rows, self.scratch = rows, scratch
        self.reads: list[list[tuple[str, RowAccess]]] = []
        self.writes: list[list[tuple[str, RowAccess]]] = []
        for launch, own in zip(launches, rows, strict=True):
            named = [(launch.tensors[a.buffer].tensor, a) for a in own.accesses]
            self.reads.append([x for x in named if not x[1].writes])
            self.writes.append([x for x in named if x[1].writes])
        self.stores = [any(name not in scratch for name, _ in x) for x in self.writes]

    def tiles(
        self, numbers: Iterable[int], count: int, limits: Mapping[str, int] | None = None
    ) -> Iterator[TileRanges]:
        """Yield the ranges of some tiles of `count`, which one thread runs one after the other.

        A thread does not compute again what it has computed for the tile before. `limits` are the
        bytes of each tensor's scratch; None if they are not known yet.
        """
        held: dict[str, Interval] = {}
        for number in numbers:
            tile = self._tile(number, count, held)
            if held and not self._follows(tile, held, limits):
                tile = self._tile(number, count, {})
            windows = {n: w if _fits(w, n, limits) else None for n, w in tile.windows.items()}
            own = {n: windows[n] for n in self.scratch}
            known = {n: w for n, w in windows.items() if w is not None}
            held = {} if None in own.values() else known
            yield TileRanges(tile.iterations, own, tile.kept)

    def _follows(
        self, tile: TileRanges, held: Mapping[str, Interval], limits: Mapping[str, int] | None
    ) -> bool:
        """Whether a tile fits in scratch, in which its bytes follow those of the tile before."""
        windows = [(n, tile.windows[n]) for n in self.scratch]
        return all(_fits(w, n, limits) and w is not None and w[0] >= held[n][0] for n, w in windows)

    def _tile(self, number: int, count: int, held: Mapping[str, Interval]) -> TileRanges:
        """Return the ranges of tile `number` of `count`, after a tile that left some bytes.

        Each launch whose results are not all scratch runs its part of all iterations. Each launch
        runs what later ones read.
        """
        needed: dict[str, list[Interval]] = {}
        ranges: list[tuple[Interval, ...]] = []
        for k in reversed(range(len(self.rows))):
            n, found = self.rows[k].iterations, list[Interval]()
            if self.stores[k]:
                found.append((n * number // count, n * (number + 1) // count))
            for name, access in self.writes[k]:
                whole = needed[name] = _whole_rows(merged(needed.get(name, [])), access)
                found += map(access.iterations_of, without(whole, held.get(name)))
            ranges.append(tuple(merged(found)))
            for name, access in self.reads[k]:
                read = map(access.bytes_of, ranges[-1])
                needed.setdefault(name, []).extend(x for x in read if x is not None)
        ranges.reverse()
        for of_launch, writes in zip(ranges, self.writes, strict=True):
            for name, access in writes:
                stored = map(access.bytes_of, of_launch)
                needed.setdefault(name, []).extend(x for x in stored if x is not None)
        windows: dict[str, Interval | None] = {}
        for name, intervals in needed.items():
            together = merged(intervals)
            windows[name] = together[0] if len(together) == 1 else None
        kept: dict[str, Interval] = {}
        for name in self.scratch:
            window, before = windows.setdefault(name, (0, 0)), held.get(name)
            if window is not None and before is not None:
                first, end = max(window[0], before[0]), min(window[1], before[1])
                kept |= {name: (first, end)} if first < end else {}
        return TileRanges(tuple(ranges), windows, kept)


def _whole_rows(needed: Iterable[Interval], access: RowAccess) -> list[Interval]:
    """Return the rows that have some of the bytes that are needed."""
    rows = (access.bytes_of(access.iterations_of(x)) for x in needed)
    return merged([x for x in rows if x is not None])


def _fits(window: Interval | None, name: str, limits: Mapping[str, int] | None) -> bool:
    """Whether the bytes of a tensor are adjacent, and no more than its scratch if it has any."""
    if window is None:
        return False
    return limits is None or window[1] - window[0] <= limits.get(name, window[1])


def tile_chunks(count: int, chunks: int) -> list[range]:
    """Return the numbers of the tiles in each chunk; chunks are as equal as can be."""
    return [range(count * k // chunks, count * (k + 1) // chunks) for k in range(chunks)]
