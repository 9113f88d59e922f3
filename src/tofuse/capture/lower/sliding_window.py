"""Windows over the last two or three dimensions, and what their elements get from them.

What is at one place of all windows is a slice. The other way round, an element adds up what all
windows say of it that it lies in. Which these are depends on how far into a step it lies, so that
each of these residues is a sum of its own; the results are laid side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from tofuse.capture.lower.builder import Builder, Refused
from tofuse.capture.lower.call import Call
from tofuse.ir.dims import Dim, contiguous_strides, hint
from tofuse.ir.graph import Attr, Scalar, Value
from tofuse.ir.types import DType

MOST_PLACES = 27  # of a window; each is a read and an operation
MOST_RESIDUES = 16

Place = tuple[int, ...]  # in a window


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


def windows_of(call: Call, shape: Sequence[Dim], rank: int, gaps: str = "") -> tuple[Windows, ...]:
    """The windows of a pooling of `self` over its last `rank` dimensions, whose result has that
    shape; `gaps` names the argument that says how far apart elements of a window are."""

    def each(name: str) -> tuple[int, ...]:
        given = call.integers(name)
        return given if len(given) == rank else given * rank

    sizes, lows, ceil = each("kernel_size"), each("padding"), call.flag("ceil_mode")
    steps = each("stride" if call.integers("stride") else "kernel_size")
    if math.prod(sizes) > MOST_PLACES:
        raise Refused(f"a window has more than {MOST_PLACES} places")
    apart = each(gaps) if gaps else (1,) * rank
    extents = call.tensor("self").shape[-rank:]
    return windows_between(extents, shape[-rank:], sizes, steps, apart, lows, cut=not ceil)


def windows_between(
    extents: Sequence[Dim],
    counts: Sequence[Dim],
    sizes: Sequence[int],
    steps: Sequence[int],
    gaps: Sequence[int],
    lows: Sequence[int],
    *,
    cut: bool,
) -> tuple[Windows, ...]:
    """The windows of which there are `counts` in images of `extents`; the last one reaches beyond
    what `lows` add, unless it is cut."""
    found = []
    for extent, count, size, step, gap, low in zip(
        extents, counts, sizes, steps, gaps, lows, strict=True
    ):
        reach = (count + -1) * step + (size - 1) * gap + 1
        high = reach + extent * -1 + -low
        if not isinstance(high, int) and (low or not cut):
            raise Refused("sizes that are not fixed")
        found.append(
            Windows(size, step, gap, low, max(0, high) if isinstance(high, int) else 0, count)
        )
    return tuple(found)


def pieces(build: Builder, x: Value, windows: tuple[Windows, ...], fill: float) -> Iterator[Value]:
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
    extent: Dim
    count: Dim
    low: int
    high: int

    def starts(self, residue: int) -> list[tuple[int, int]]:
        """Each place at which these elements lie in a window, in the order of the windows; and the
        first of `count` such windows, padded."""
        at, w = residue + self.windows.low, self.windows
        places = reversed(range(w.size))
        steps = ((place, *divmod(at - place * w.gap, w.step)) for place in places)
        return [(place, step + self.low) for place, step, rest in steps if not rest]


def _line(w: Windows, extent: Dim) -> _Line:
    count = extent
    if w.step > 1:
        if not isinstance(extent, int):
            raise Refused("sizes that are not fixed")
        count = -(-extent // w.step)
    reached = [(r + w.low - p * w.gap) // w.step for r in range(w.step) for p in range(w.size)]
    high = max(reached) + count + w.count * -1
    if not isinstance(high, int):
        raise Refused("sizes that are not fixed")
    return _Line(w, extent, count, max(0, -min(reached)), max(0, high))


Say = Callable[[Place, Place, Callable[[Value], Value]], Value]


class Gradient:
    """What the elements of images get from windows over them."""

    def __init__(self, call: Call, laid: torch.Tensor, windows: tuple[Windows, ...], dtype: DType):
        """Of images like `laid`, a result of the call, summed in `dtype`."""
        shape, rank = call.type_of(laid).shape, len(windows)
        self.build, self.outer, self.dtype = call.build, shape[:-rank], dtype
        self.lines = [_line(w, e) for w, e in zip(windows, shape[-rank:], strict=True)]
        if math.prod(w.step for w in windows) > MOST_RESIDUES:
            raise Refused(f"windows more than {MOST_RESIDUES} elements apart")
        self.whole = all(n.count * n.windows.step == n.extent for n in self.lines)
        if not self.whole and laid.stride(-1) != 1:
            raise Refused("a copy of images that are no whole steps long, and channels last")

    def padded(self, x: Value, fill: float) -> Value:
        """What windows hold, with windows around that hold `fill`."""
        return _padded(self.build, x, [(n.low, n.high) for n in self.lines], fill)

    def gather(self, say: Say) -> Value:
        """The sum over all windows of `say(residue, place, of)`; `of` takes what is padded to what
        the windows hold in which elements of this residue are at this place."""
        build = self.build
        extents = [n.count * n.windows.step for n in self.lines]
        steps = build.reshape(self._side_by_side((), say), (*self.outer, *extents))
        if self.whole:
            return steps
        return build.copy(_part(build, steps, [(0, n.extent, 1) for n in self.lines]))

    def _side_by_side(self, residue: Place, say: Say) -> Value:
        """All whose residues along the first dimensions are these."""
        d = len(residue)
        if d == len(self.lines):
            return self._one(residue, say)
        steps = range(self.lines[d].windows.step)
        found = [self._side_by_side((*residue, r), say) for r in steps]
        return self.build.cat(found, len(self.outer) + 2 * d + 1)

    def _one(self, residue: Place, say: Say) -> Value:
        total: Value | None = None
        counts = [n.count for n in self.lines]
        found = [n.starts(r) for n, r in zip(self.lines, residue, strict=True)]
        for lies in itertools.product(*found):
            parts = [(start, count, 1) for (_, start), count in zip(lies, counts, strict=True)]
            place = tuple(place for place, _ in lies)
            said = say(residue, place, lambda x: _part(self.build, x, parts))  # noqa: B023
            total = said if total is None else self.build.emit("add", (total, said), {})
        if total is None:
            total = self.build.full((*self.outer, *counts), Scalar(0.0), self.dtype)
        apart = (extent for count in counts for extent in (count, 1))
        return self.build.reshape(total, (*self.outer, *apart))

    def positions(self, residue: Place) -> Value:
        """Of elements of that residue in their image, row by row; int32."""
        scales = contiguous_strides(tuple(n.extent for n in self.lines))
        found = [
            (r * hint(scale), n.windows.step * hint(scale), n.count)
            for n, r, scale in zip(self.lines, residue, scales, strict=True)
        ]
        first, *others = numbers(self.build, self.outer, found)
        for other in others:
            first = self.build.emit("add", (first, other), {})
        return first


def numbers(
    build: Builder, outer: tuple[Dim, ...], lines: Sequence[tuple[int, int, Dim]]
) -> list[Value]:
    """start, start + step, ... along each of the last dimensions, the same along the others.

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
    return found


def _padded(build: Builder, x: Value, around: Sequence[tuple[int, int]], fill: float) -> Value:
    outer = (0,) * (len(x.shape) - len(around))
    low, high = zip(*around, strict=True)
    return build.pad(x, (*outer, *low), (*outer, *high), Scalar(fill))


def _part(build: Builder, x: Value, parts: Sequence[tuple[int, Dim, int]]) -> Value:
    """(start, extent, step) along each of the last dimensions."""
    for d, (start, extent, step) in enumerate(parts, len(x.shape) - len(parts)):
        x = build.slice(x, d, start, extent, step)
    return x


def wide(dtype: DType) -> DType:
    """What sums are computed in."""
    return DType.F32 if dtype.is_narrow else dtype
