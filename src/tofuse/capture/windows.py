"""Windows over the last two dimensions of images, and what their elements get from them.

What is at one place of all windows is a slice. The other way round, an element adds up what all
windows say of it that it lies in. Which these are depends on how far into a step it lies, so that
each of these residues is a sum of its own; the results are laid side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tofuse.capture.builder import Builder, Refused
from tofuse.capture.call import Call
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Attr, Scalar, Value
from tofuse.ir.types import DType

MOST_PLACES = 25  # of a window; each is a read and an operation
MOST_RESIDUES = 16

Place = tuple[int, int]  # in a window


@dataclass(frozen=True)
class Windows:
    """Along one dimension: `size` elements a window, `gap` apart, `step` from window to window;
    `low` and `high` elements are added before the first and after the last."""

    size: int
    step: int
    gap: int
    low: int
    high: int
    count: Dim


def pair(numbers: tuple[int, ...]) -> tuple[int, int]:
    return numbers[0], numbers[-1]


def windows_of(call: Call, shape: Sequence[Dim], gaps: tuple[int, int]) -> tuple[Windows, Windows]:
    """The windows of a pooling of `self` whose result has that shape."""
    sizes = pair(call.integers("kernel_size"))
    steps = pair(call.integers("stride") or call.integers("kernel_size"))
    lows, ceil = pair(call.integers("padding")), call.flag("ceil_mode")
    if sizes[0] * sizes[1] > MOST_PLACES:
        raise Refused(f"a window has more than {MOST_PLACES} places")
    extents = call.tensor("self").shape[-2:]
    found = []
    for extent, count, size, step, gap, low in zip(
        extents, shape[-2:], sizes, steps, gaps, lows, strict=True
    ):
        reach = (count + -1) * step + (size - 1) * gap + 1
        high = reach + extent * -1 + -low
        if not isinstance(high, int) and (low or ceil):
            raise Refused("sizes that are not fixed")
        found.append(
            Windows(size, step, gap, low, max(0, high) if isinstance(high, int) else 0, count)
        )
    return found[0], found[1]


def pieces(
    build: Builder, x: Value, windows: tuple[Windows, Windows], fill: float
) -> Iterator[Value]:
    """What is at each place of all windows, in the order in which PyTorch goes."""
    x = _padded(build, x, [(w.low, w.high) for w in windows], fill)
    for place in itertools.product(*(range(w.size) for w in windows)):
        starts = [p * w.gap for p, w in zip(place, windows, strict=True)]
        yield _part(build, x, [(s, w.count, w.step) for s, w in zip(starts, windows, strict=True)])


@dataclass(frozen=True)
class _Line:
    """The `extent` elements along one dimension by residues: of residue r are `step * q + r`, where
    q is below `count`. `low` windows that are none are before the first, `high` after the last."""

    windows: Windows
    extent: int
    count: int
    low: int
    high: int

    def starts(self, residue: int) -> list[int]:
        """The first of `count` windows, padded, for each place at which these elements lie in one;
        in the order of the windows."""
        at, w = residue + self.windows.low, self.windows
        steps = (divmod(at - place * w.gap, w.step) for place in reversed(range(w.size)))
        return [step + self.low for step, rest in steps if not rest]


def _line(w: Windows, extent: Dim) -> _Line:
    if not isinstance(extent, int) or not isinstance(w.count, int):
        raise Refused("sizes that are not fixed")
    count = -(-extent // w.step)
    reached = [(r + w.low - p * w.gap) // w.step for r in range(w.step) for p in range(w.size)]
    return _Line(w, extent, count, max(0, -min(reached)), max(0, max(reached) + count - w.count))


Say = Callable[[Place, Callable[[Value], Value]], Value]


class Gradient:
    """What the elements of images get from windows over them."""

    def __init__(self, call: Call, windows: tuple[Windows, Windows], dtype: DType):
        """Of the result of a call, summed in `dtype`."""
        shape, laid = call.out.shape, call.node.meta["val"]
        self.build, self.outer, self.dtype = call.build, shape[:-2], dtype
        self.lines = [_line(w, e) for w, e in zip(windows, shape[-2:], strict=True)]
        if windows[0].step * windows[1].step > MOST_RESIDUES:
            raise Refused(f"windows more than {MOST_RESIDUES} elements apart")
        self.whole = all(n.extent % n.windows.step == 0 for n in self.lines)
        if not self.whole and laid.stride(-1) != 1:
            raise Refused("a copy of images that are no whole steps long, and channels last")

    def padded(self, x: Value, fill: float) -> Value:
        """What windows hold, with windows around that hold `fill`."""
        return _padded(self.build, x, [(n.low, n.high) for n in self.lines], fill)

    def gather(self, say: Say) -> Value:
        """The sum over all windows of `say(residue, of)`; `of` takes what is padded to what the
        windows hold that elements of this residue are in."""
        rank, build = len(self.outer), self.build
        apart = []
        for r in range(self.lines[0].windows.step):
            row = [self._one((r, s), say) for s in range(self.lines[1].windows.step)]
            apart.append(build.cat(row, rank + 3))
        extents = [n.count * n.windows.step for n in self.lines]
        steps = build.reshape(build.cat(apart, rank + 1), (*self.outer, *extents))
        if self.whole:
            return steps
        return build.copy(_part(build, steps, [(0, n.extent, 1) for n in self.lines]))

    def _one(self, residue: Place, say: Say) -> Value:
        total: Value | None = None
        counts = [n.count for n in self.lines]
        found = [n.starts(r) for n, r in zip(self.lines, residue, strict=True)]
        for i, j in itertools.product(*found):
            parts = [(i, counts[0], 1), (j, counts[1], 1)]
            said = say(residue, lambda x: _part(self.build, x, parts))  # noqa: B023
            total = said if total is None else self.build.emit("add", (total, said), {})
        if total is None:
            total = self.build.full((*self.outer, *counts), Scalar(0.0), self.dtype)
        return self.build.reshape(total, (*self.outer, counts[0], 1, counts[1], 1))

    def positions(self, residue: Place) -> Value:
        """Of elements of that residue in their image, row by row; int32."""
        found = [
            (r * scale, n.windows.step * scale, n.count)
            for n, r, scale in zip(self.lines, residue, (self.lines[1].extent, 1), strict=True)
        ]
        rows, columns = numbers(self.build, self.outer, found)
        return self.build.emit("add", (rows, columns), {})


def numbers(
    build: Builder, outer: tuple[Dim, ...], lines: Sequence[tuple[int, int, Dim]]
) -> tuple[Value, Value]:
    """start, start + step, ... along each of the last two dimensions, the same along the others.

    `lines`: start, step and count of each; int32.
    """
    shape = (*outer, *(count for _, _, count in lines))
    found = []
    for d, (start, step, count) in enumerate(lines, len(outer)):
        attrs: dict[str, Attr] = {
            "start": start,
            "step": step,
            "shape": (count,),
            "dtype": DType.I32,
        }
        found.append(build.broadcast(build.emit("iota", (), attrs), shape, (d,)))
    return found[0], found[1]


def _padded(build: Builder, x: Value, around: Sequence[tuple[int, int]], fill: float) -> Value:
    outer = (0,) * (len(x.shape) - 2)
    low, high = zip(*around, strict=True)
    return build.pad(x, (*outer, *low), (*outer, *high), Scalar(fill))


def _part(build: Builder, x: Value, parts: Sequence[tuple[int, Dim, int]]) -> Value:
    """(start, extent, step) along each of the last two dimensions."""
    for d, (start, extent, step) in enumerate(parts, len(x.shape) - 2):
        x = build.slice(x, d, start, extent, step)
    return x
