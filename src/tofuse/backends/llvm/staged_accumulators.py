"""When the stages of long sums go into one another, while loops run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from tofuse.backends.llvm.reduce import Cell, fold_stage
from tofuse.backends.llvm.registers import Frame
from tofuse.backends.llvm.scratch_accumulators import fold_array
from tofuse.ir.dims import Dim, fixed
from tofuse.ir.kernel import Reduce
from tofuse.ir.nest import (
    Accumulate,
    Do,
    For,
    Nest,
    Node,
)
from tofuse.ir.schedule import Loop
from tofuse.ir.staged_sum import (
    FIRST,
    due,
    is_cut,
    stages,
    steps_of,
)


class Chains:
    """The reductions under way: in registers, and in scratch."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.cells: dict[str, Cell] = {}
        self.arrays: dict[str, Accumulate] = {}

    def stages(self, r: Reduce, *, in_vectors: bool) -> int:
        """The stages of a cell: one that lives in a single vector loop, or around such loops."""
        kernel, schedule = self.nest.kernel, self.nest.schedule
        if not is_cut(r):
            return 0
        return stages(self._groups() if in_vectors else steps_of(kernel, schedule, r))

    def loops(self, r: Reduce) -> list[Loop]:
        """The loops of a reduction that do not run in vectors."""
        schedule = self.nest.schedule
        around = schedule.loops[:-1] if schedule.vector > 1 else schedule.loops
        return [lp for lp in around if lp.axis in r.over]

    def step(
        self, frame: Frame, done: Collection[Loop], body: Sequence[Node], rows: int = 1
    ) -> None:
        """After an iteration of the loops `done`, move on what has gathered long enough in `body`.

        The same loop runs in later passes too, in which nothing gathers. An iteration that took
        several `rows` added their sum.
        """
        here = set(_reductions(body)) if self.arrays or self.cells else set()
        for a in self.arrays.values():
            if a.stages and a.reduce in here and self.loops(a.reduce)[-1] in done:
                outside, every = self._outside(a.reduce), _periods(len(a.stages), rows)
                fold = partial(fold_array, frame, a, outside)
                self._move(frame, self._count(frame, a.reduce), every, fold)
        for cell in self.cells.values():
            loops, every = self.loops(cell.reduce), _periods(len(cell.stages))
            if cell.stages and cell.reduce in here and loops and loops[-1] in done:
                at = self._count(frame, cell.reduce)
                self._move(frame, at, every, partial(fold_stage, frame, cell))

    def block_done(self, frame: Frame, cells: Sequence[Cell], at: str, size: int) -> None:
        """After a block of `FIRST` groups of vectors that began at `at`, `size` elements long."""
        number = frame.f.let(f"sdiv i64 {at}, {size}")
        group = frame.f.let(f"mul i64 {number}, {FIRST}")
        group = frame.f.let(f"add i64 {group}, {FIRST - 1}")
        for cell in cells:
            fold_stage(frame, cell, 0)
            later = _periods(len(cell.stages))[1:]
            self._move(frame, group, later, partial(fold_stage, frame, cell))

    def _move(
        self,
        frame: Frame,
        at: str,
        every: Sequence[tuple[int, int]],
        fold: Callable[[int], None],
    ) -> None:
        """Fold the stages that are due after step `at`; the later a stage, the rarer."""
        if not every:
            return
        stage, period = every[0]
        low = frame.f.let(f"and i64 {at}, {period - 1}")
        with frame.f.when(frame.f.let(f"icmp eq i64 {low}, {period - 1}")):
            fold(stage)
            self._move(frame, at, every[1:], fold)

    def _count(self, frame: Frame, r: Reduce) -> str:
        """The number of the current step among those that a point of the result takes in."""
        f, total = frame.f, ""
        inner = self.nest.schedule.loops[-1].axis
        for lp in self.loops(r):
            if lp.strip and lp.axis != inner:
                continue  # the loop inside the tile has the index
            trips = fixed(self.nest.kernel.extent(lp.axis), 0)
            at = frame.index[lp.axis]
            if lp.strip:
                at = f.let(f"sdiv i64 {frame.tiles[lp.axis]}, {lp.strip}")
                trips = -(-trips // lp.strip)
            if total:
                more = str(trips) if trips else frame.size(self.nest.kernel.extent(lp.axis))
                at = f.let(f"add i64 {f.let(f'mul i64 {total}, {more}')}, {at}")
            total = at
        return total

    def _outside(self, r: Reduce) -> list[str]:
        """The axes whose loops all stand outside the innermost loop of a reduction."""
        order = list(self.nest.schedule.loops)
        last = order.index(self.loops(r)[-1])
        inside = {lp.axis for lp in order[last:]}
        return [lp.axis for lp in order[:last] if lp.axis not in inside]

    def _groups(self) -> Dim:
        """How many groups of vectors a vector loop has."""
        schedule, axis = self.nest.schedule, self.nest.schedule.loops[-1].axis
        strips = [lp.strip for lp in schedule.loops if lp.axis == axis and lp.strip]
        extent = strips[0] if strips else self.nest.kernel.extent(axis)
        if not isinstance(extent, int):
            return extent
        return -(-extent // (schedule.vector * schedule.unroll))


def _reductions(nodes: Sequence[Node]) -> Iterator[Reduce]:
    """What takes in a value somewhere in these nodes."""
    for node in nodes:
        if isinstance(node, For):
            yield from _reductions(node.body)
        elif isinstance(node, Do) and isinstance(node.stmt, Reduce):
            yield node.stmt


def _periods(count: int, rows: int = 1) -> list[tuple[int, int]]:
    """Each stage, and after how many steps it is due."""
    return [(k, due(k) * rows) for k in range(count)]
