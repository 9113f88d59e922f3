"""Which loops of a schedule enclose the statements and values of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tofuse.ir.dims import Dim, known_positive, product, size_hint
from tofuse.ir.kernel import Kernel, Reduce, Stmt
from tofuse.ir.nest import NestStmt, Reload
from tofuse.ir.schedule import Schedule

PHASE_LEVEL = -1  # the level outside all loops, where one phase follows another


@dataclass(eq=False)
class LoopPlacement:
    """The loops around statements and values. A level is the position of a loop, 0 the outermost.

    `value_axes` are the axes that each value depends on, `stmt_axes` those that each statement runs
    over; see `iteration_axes`.
    """

    kernel: Kernel
    schedule: Schedule
    value_axes: Mapping[str, frozenset[str]]
    stmt_axes: Mapping[Stmt, frozenset[str]]
    _innermost: dict[str, int] = field(init=False)
    _depths: dict[NestStmt, int] = field(default_factory=dict)
    _inner_axes: dict[tuple[frozenset[str], int], tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._innermost = {lp.axis: k for k, lp in enumerate(self.schedule.loops)}

    def innermost_level(self, axis: str) -> int:
        """Return the level of the innermost loop over an axis."""
        return self._innermost[axis]

    def outermost_level(self, axis: str) -> int:
        """Return the level of the outermost loop over an axis, which may step over tiles."""
        return min(k for k, lp in enumerate(self.schedule.loops) if lp.axis == axis)

    def reduction_level(self, r: Reduce) -> int:
        """Return the level of the outermost loop that a reduction runs over."""
        return min(self.outermost_level(a) for a in r.over)

    def axes(self, stmt: NestStmt) -> frozenset[str]:
        """Return the axes whose loops enclose a statement."""
        return self.value_axes[stmt.name] if isinstance(stmt, Reload) else self.stmt_axes[stmt]

    def depth(self, stmt: NestStmt) -> int:
        """Return the number of loops that enclose a statement."""
        if stmt not in self._depths:
            self._depths[stmt] = max((self._innermost[a] + 1 for a in self.axes(stmt)), default=0)
        return self._depths[stmt]

    def inner_axes(self, name: str, level: int) -> tuple[str, ...]:
        """Return the axes of a value whose loops are at or inside `level`, outermost first."""
        key = self.value_axes[name], level
        if key not in self._inner_axes:
            inner = [a for a in key[0] if self._innermost[a] >= level]
            self._inner_axes[key] = tuple(sorted(inner, key=self.innermost_level))
        return self._inner_axes[key]

    def varies_between(self, name: str, start: int, end: int) -> bool:
        """Whether a value depends on the axis of a loop from level `start` up to, not at, `end`."""
        return any(lp.axis in self.value_axes[name] for lp in self.schedule.loops[start:end])

    def is_always_recomputed(self, name: str, level: int) -> bool:
        """Whether later passes recompute a value whatever it costs, instead of spilling it.

        A value that does not depend on the loop at `level` adds little work.
        """
        outer = self.schedule.loops[: self.schedule.parallel]
        if level != PHASE_LEVEL:
            outer = self.schedule.loops[level : level + 1]
        if self.value_axes[name].isdisjoint(lp.axis for lp in outer):
            return True
        return self.may_be_skipped(name, level, frozenset(self._innermost))

    def may_be_skipped(self, name: str, level: int, around: frozenset[str]) -> bool:
        """Whether loops from `level` on, over those of `around` that a value lacks, may be empty.

        Inside of them, it would not be computed, and an array that holds it would stay undefined.
        """
        axes = self.value_axes[name]
        inner = self.schedule.loops[max(level, 0) : max(map(self.innermost_level, axes), default=0)]
        others = {lp.axis for lp in inner} & around - axes
        return not all(known_positive(self.kernel.extent(a)) for a in others)

    def tiled_axes(self, axes: Sequence[str], level: int) -> tuple[str, ...]:
        """Return the axes whose tile loop is outside `level`: an array holds one tile of them."""
        return tuple(
            a for a in axes if self.outermost_level(a) < min(self.innermost_level(a), level)
        )

    def extents(self, axes: Sequence[str], tiled: Sequence[str]) -> list[Dim]:
        """Return the extents of an array over `axes`; those in `tiled` have the size of a tile."""
        strips = {lp.axis: lp.strip for lp in self.schedule.loops if lp.strip}
        return [strips[a] if a in tiled else self.kernel.extent(a) for a in axes]

    def row_bytes(self, name: str, level: int) -> int:
        """Estimate the bytes of an array that holds a value over the loops from `level` on."""
        axes = self.inner_axes(name, level)
        return size_hint(product(self.extents(axes, self.tiled_axes(axes, level)))) * 4
