"""Layered graph drawing: rows from top to bottom, few crossings, straight edges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Point = tuple[float, float]
Size = tuple[float, float]

SWEEPS = 6  # over all rows; the order hardly changes after four
MAX_ROUTED_ROWS = 8  # an edge over more rows has no bends and is drawn as two stubs


@dataclass(frozen=True)
class Gaps:
    """The space between neighbours in a row and between rows, and the maximum row width."""

    horizontal: float
    vertical: float
    max_row_width: float


@dataclass(frozen=True)
class DiagramLayout(Generic[K]):
    """The top left corner of each box, and the bend points of each edge that is not too long."""

    positions: Mapping[K, Point]
    bends: Mapping[tuple[K, K], tuple[Point, ...]]
    width: float
    height: float


def layered_layout(
    sizes: Mapping[K, Size], edges: Sequence[tuple[K, K]], gaps: Gaps
) -> DiagramLayout[K]:
    """Lay out boxes so that each lies below those it depends on; `sizes` is in topological order.

    The steps are Sugiyama's: assign rows, insert dummy nodes on long edges, order the rows by
    barycentre, and place each row.
    """
    edges = [e for e in dict.fromkeys(edges) if e[0] is not e[1]]
    return _LayerBuilder(dict(sizes), edges, gaps).run()


@dataclass(eq=False)
class _LayerBuilder(Generic[K]):
    sizes: dict[K, Size]
    edges: list[tuple[K, K]]
    gaps: Gaps
    rows: list[list[int]] = field(default_factory=list)
    row_of: list[int] = field(default_factory=list)
    node_sizes: list[Size] = field(default_factory=list)  # the boxes, then the dummy nodes
    predecessors: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    successors: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    centres: list[float] = field(default_factory=list)

    def run(self) -> DiagramLayout[K]:
        keys = list(self.sizes)
        number = {k: n for n, k in enumerate(keys)}
        pairs = [(number[a], number[b]) for a, b in self.edges]
        self.node_sizes = list(self.sizes.values())
        self.row_of = self._assign_rows(len(keys), pairs)
        paths = self._insert_dummy_nodes(pairs)
        self._fill_rows()
        for k in range(SWEEPS):
            self._order_rows(down=k % 2 == 0)
        heights = [max(self.node_sizes[n][1] for n in members) for members in self.rows]
        tops = list(accumulate((h + self.gaps.vertical for h in heights), initial=0.0))
        lefts = [c - w / 2 for c, (w, _) in zip(self.centres, self.node_sizes, strict=True)]
        left = min(lefts, default=0)
        positions = {k: (lefts[n] - left, tops[self.row_of[n]]) for n, k in enumerate(keys)}
        bends = {
            edge: tuple(
                (self.centres[n] - left, tops[self.row_of[n]] + end)
                for n in path
                for end in (0.0, heights[self.row_of[n]])
            )
            for edge, path in zip(self.edges, paths, strict=True)
            if path is not None
        }
        width = max((x + self.sizes[k][0] for k, (x, _) in positions.items()), default=0)
        height = tops[-1] - self.gaps.vertical if self.rows else 0
        return DiagramLayout(positions, bends, width, max(height, 0))

    # -- rows ------------------------------------------------------------------------------------

    def _assign_rows(self, count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
        """Return a row for each box: its longest path from a source.

        A source lies just above its first consumer.
        """
        layer = [0] * count
        after: dict[int, list[int]] = {}
        for a, b in sorted(pairs):
            layer[b] = max(layer[b], layer[a] + 1)
            after.setdefault(a, []).append(b)
        for n in after.keys() - {b for _, b in pairs}:
            layer[n] = min(layer[b] for b in after[n]) - 1
        return self._split_wide_layers(layer)

    def _split_wide_layers(self, layer: list[int]) -> list[int]:
        """Spread a layer that is wider than one row over several."""
        members: dict[int, list[int]] = {}
        for n, k in enumerate(layer):
            members.setdefault(k, []).append(n)
        row_of, row = [0] * len(layer), 0
        for k in sorted(members):
            used = 0.0
            for n in members[k]:
                width = self.node_sizes[n][0] + self.gaps.horizontal
                if used and used + width > self.gaps.max_row_width:
                    row, used = row + 1, 0.0
                row_of[n], used = row, used + width
            row += 1
        return row_of

    def _insert_dummy_nodes(self, pairs: Sequence[tuple[int, int]]) -> list[list[int] | None]:
        """Insert a dummy node without height in each row that an edge crosses; return the paths.

        Edges pass between boxes at their dummy nodes. An edge that crosses too many rows has none.
        """
        paths: list[list[int] | None] = []
        for a, b in pairs:
            if self.row_of[b] - self.row_of[a] > MAX_ROUTED_ROWS:
                paths.append(None)
                continue
            path = []
            for row in range(self.row_of[a] + 1, self.row_of[b]):
                path.append(len(self.node_sizes))
                self.node_sizes.append((8.0, 0.0))
                self.row_of.append(row)
            chain = [a, *path, b]
            for x, y in pairwise(chain):
                self.successors[x].append(y)
                self.predecessors[y].append(x)
            paths.append(path)
        return paths

    def _fill_rows(self) -> None:
        self.rows = [[] for _ in range(max(self.row_of, default=-1) + 1)]
        for n, row in enumerate(self.row_of):
            self.rows[row].append(n)
        self.centres = [0.0] * len(self.node_sizes)
        for members in self.rows:
            self._place_row(members, [0.0] * len(members))

    # -- order and horizontal placement ----------------------------------------------------------

    def _order_rows(self, down: bool) -> None:
        """Order and place every row by the mean position of its neighbours in the row before."""
        neighbours = self.predecessors if down else self.successors
        for row in range(len(self.rows)) if down else range(len(self.rows) - 1, -1, -1):
            members = self.rows[row]
            desired = {
                n: sum(self.centres[m] for m in neighbours[n]) / len(neighbours[n])
                if neighbours[n]
                else self.centres[n]
                for n in members
            }
            members.sort(key=lambda n: desired[n])
            self._place_row(members, [desired[n] for n in members])

    def _place_row(self, members: Sequence[int], desired_centres: Sequence[float]) -> None:
        """Place a row at least squared distance from the desired centres, without overlap.

        Isotonic regression by pooling adjacent violators: blocks that would overlap are merged.
        """
        widths = [self.node_sizes[n][0] for n in members]
        steps = ((a + b) / 2 + self.gaps.horizontal for a, b in pairwise(widths))
        offsets = list(accumulate(steps, initial=0.0))
        blocks: list[tuple[float, int]] = []  # mean desired centre, number of members
        for desired, offset in zip(desired_centres, offsets, strict=True):
            mean, count = desired - offset, 1
            while blocks and blocks[-1][0] > mean:
                other_mean, other_count = blocks.pop()
                mean, count = (
                    (mean * count + other_mean * other_count) / (count + other_count),
                    count + other_count,
                )
            blocks.append((mean, count))
        means = [mean for mean, count in blocks for _ in range(count)]
        for n, mean, offset in zip(members, means, offsets, strict=True):
            self.centres[n] = mean + offset
