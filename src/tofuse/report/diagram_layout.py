"""Places for the boxes of a picture: layers from top to bottom, few crossings, straight edges."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Point = tuple[float, float]
Size = tuple[float, float]

SWEEPS = 6  # over all layers: the order hardly changes after four
LONGEST = 8  # layers that an edge is led through; a longer one is drawn as two stubs


@dataclass(frozen=True)
class Gaps:
    """Space between neighbours of a layer and between layers, and the widest that a row may be."""

    across: float
    down: float
    widest: float


@dataclass(frozen=True)
class Layout(Generic[K]):
    """Top left corners, and the points each edge is led through; too long ones are not led."""

    at: Mapping[K, Point]
    bends: Mapping[tuple[K, K], tuple[Point, ...]]
    width: float
    height: float


def lay_out(sizes: Mapping[K, Size], edges: Sequence[tuple[K, K]], gaps: Gaps) -> Layout[K]:
    """Every box in a row below those it depends on; `sizes` in an order that runs."""
    edges = [e for e in dict.fromkeys(edges) if e[0] is not e[1]]
    return _Drawing(dict(sizes), edges, gaps).run()


@dataclass(eq=False)
class _Drawing(Generic[K]):
    sizes: dict[K, Size]
    edges: list[tuple[K, K]]
    gaps: Gaps
    rows: list[list[int]] = field(default_factory=list)
    row_of: list[int] = field(default_factory=list)
    size: list[Size] = field(default_factory=list)  # of nodes: the boxes, then bends
    above: list[list[int]] = field(default_factory=list)
    below: list[list[int]] = field(default_factory=list)
    centre: list[float] = field(default_factory=list)

    def run(self) -> Layout[K]:
        keys = list(self.sizes)
        number = {k: n for n, k in enumerate(keys)}
        pairs = [(number[a], number[b]) for a, b in self.edges]
        self.size = list(self.sizes.values())
        self.row_of = self._layers(len(keys), pairs)
        paths = self._lead(pairs)
        self._make_rows()
        for k in range(SWEEPS):
            self._sweep(down=k % 2 == 0)
        tops = self._tops()
        left = min((self.centre[n] - self.size[n][0] / 2 for n in range(len(self.size))), default=0)
        at = {
            k: (self.centre[n] - self.size[n][0] / 2 - left, tops[self.row_of[n]])
            for n, k in enumerate(keys)
        }
        bends = {
            edge: tuple(
                (self.centre[n] - left, tops[self.row_of[n]] + end)
                for n in path
                for end in (0.0, self._height(self.row_of[n]))
            )
            for edge, path in zip(self.edges, paths, strict=True)
            if path is not None
        }
        width = max((x + self.sizes[k][0] for k, (x, _) in at.items()), default=0)
        height = tops[-1] - self.gaps.down if self.rows else 0
        return Layout(at, bends, width, max(height, 0))

    # -- rows ------------------------------------------------------------------------------------

    def _layers(self, count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
        """The longest path to each box; what nothing leads to stands just above its first use."""
        layer = [0] * count
        before: list[list[int]] = [[] for _ in range(count)]
        after: list[list[int]] = [[] for _ in range(count)]
        for a, b in pairs:
            before[b].append(a)
            after[a].append(b)
        for n in range(count):
            layer[n] = max((layer[a] + 1 for a in before[n]), default=0)
        for n in range(count):
            if not before[n] and after[n]:
                layer[n] = max(0, min(layer[b] for b in after[n]) - 1)
        return self._fold(layer)

    def _fold(self, layer: list[int]) -> list[int]:
        """A layer that is too wide for one row takes several."""
        members: dict[int, list[int]] = {}
        for n, at in enumerate(layer):
            members.setdefault(at, []).append(n)
        row_of, row = [0] * len(layer), 0
        for at in sorted(members):
            used = 0.0
            for n in members[at]:
                width = self.size[n][0] + self.gaps.across
                if used and used + width > self.gaps.widest:
                    row, used = row + 1, 0.0
                row_of[n], used = row, used + width
            row += 1
        return row_of

    def _lead(self, pairs: Sequence[tuple[int, int]]) -> list[list[int] | None]:
        """A node of no height in each row that an edge crosses, so that it goes between boxes."""
        self.above = [[] for _ in self.size]
        self.below = [[] for _ in self.size]
        paths: list[list[int] | None] = []
        for a, b in pairs:
            if self.row_of[b] - self.row_of[a] > LONGEST:
                paths.append(None)
                continue
            path = []
            for row in range(self.row_of[a] + 1, self.row_of[b]):
                path.append(len(self.size))
                self.size.append((8.0, 0.0))
                self.row_of.append(row)
                self.above.append([])
                self.below.append([])
            chain = [a, *path, b]
            for x, y in itertools.pairwise(chain):
                self.below[x].append(y)
                self.above[y].append(x)
            paths.append(path)
        return paths

    def _make_rows(self) -> None:
        self.rows = [[] for _ in range(max(self.row_of, default=-1) + 1)]
        for n, row in enumerate(self.row_of):
            self.rows[row].append(n)
        self.centre = [0.0] * len(self.size)
        for members in self.rows:
            self._place(members, [0.0] * len(members))

    # -- across ----------------------------------------------------------------------------------

    def _sweep(self, down: bool) -> None:
        """Order every row by where its neighbours in the row before stand, and place it there."""
        near = self.above if down else self.below
        for row in range(len(self.rows)) if down else range(len(self.rows) - 1, -1, -1):
            members = self.rows[row]
            wish = {
                n: sum(self.centre[m] for m in near[n]) / len(near[n])
                if near[n]
                else self.centre[n]
                for n in members
            }
            members.sort(key=lambda n: wish[n])
            self._place(members, [wish[n] for n in members])

    def _place(self, members: Sequence[int], wishes: Sequence[float]) -> None:
        """The places nearest to the wishes, in squares, at which neighbours keep their distance.

        Isotonic regression by pooling: where two blocks would overlap, they move as one.
        """
        offsets, total = [], 0.0
        for k, n in enumerate(members):
            if k:
                total += (self.size[members[k - 1]][0] + self.size[n][0]) / 2 + self.gaps.across
            offsets.append(total)
        blocks: list[tuple[float, int]] = []  # mean wish, members
        for wish, offset in zip(wishes, offsets, strict=True):
            mean, count = wish - offset, 1
            while blocks and blocks[-1][0] > mean:
                other, more = blocks.pop()
                mean, count = (mean * count + other * more) / (count + more), count + more
            blocks.append((mean, count))
        k = 0
        for mean, count in blocks:
            for _ in range(count):
                self.centre[members[k]] = mean + offsets[k]
                k += 1

    # -- down ------------------------------------------------------------------------------------

    def _height(self, row: int) -> float:
        return max(self.size[n][1] for n in self.rows[row])

    def _tops(self) -> list[float]:
        """The top of each row, and one more below the last."""
        tops = [0.0]
        for row in range(len(self.rows)):
            tops.append(tops[-1] + self._height(row) + self.gaps.down)
        return tops
