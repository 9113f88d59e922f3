"""Staged sums: when, in the running loops, a stage of a long sum is added to the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from tofuse.backends.llvm.function_emitter import FunctionEmitter
from tofuse.backends.llvm.reduce import RegisterAccumulator, fold_stage
from tofuse.backends.llvm.scratch_accumulators import fold_array_stage
from tofuse.ir.dims import Dim, static_or
from tofuse.ir.kernel import Reduce
from tofuse.ir.nest import Accumulator, For, Nest, Node, StmtNode
from tofuse.ir.schedule import Loop
from tofuse.ir.staged_sum import (
    FIRST_STAGE_TERMS,
    is_staged,
    sequential_steps,
    stage_count,
    stage_period,
)


class StagedSums:
    """Decides when the stages of the long sums among the active reductions are folded."""

    def __init__(
        self,
        nest: Nest,
        in_registers: Mapping[str, RegisterAccumulator],
        in_scratch: Mapping[str, Accumulator],
    ) -> None:
        self.nest, self.in_registers, self.in_scratch = nest, in_registers, in_scratch

    def stages_of(self, r: Reduce, *, in_vectors: bool) -> int:
        """Return the number of stages of a sum in registers.

        `in_vectors` means that it runs in a single vector loop, else in loops around vector loops.
        """
        kernel, schedule = self.nest.kernel, self.nest.schedule
        if not is_staged(r):
            return 0
        return stage_count(
            self._vector_groups() if in_vectors else sequential_steps(kernel, schedule, r)
        )

    def reduction_loops(self, r: Reduce) -> list[Loop]:
        """Return the loops of a reduction that do not run in vectors."""
        schedule = self.nest.schedule
        around = schedule.loops[:-1] if schedule.vector > 1 else schedule.loops
        return [lp for lp in around if lp.axis in r.over]

    def fold_due_stages(
        self, emitter: FunctionEmitter, done: Collection[Loop], body: Sequence[Node], rows: int = 1
    ) -> None:
        """After an iteration of the loops `done`, fold the due stages of sums updated in `body`.

        Later passes run the same loops without updating these sums. An iteration over several
        `rows` counts as one step.
        """
        updated = set(_reductions_in(body)) if self.in_scratch or self.in_registers else set()
        for a in self.in_scratch.values():
            if a.stages and a.reduce in updated and self.reduction_loops(a.reduce)[-1] in done:
                outside, periods = self._outer_axes(a.reduce), _stage_periods(len(a.stages), rows)
                fold = partial(fold_array_stage, emitter, a, outside)
                self._fold_due(emitter, self._step_number(emitter, a.reduce), periods, fold)
        for acc in self.in_registers.values():
            loops, periods = self.reduction_loops(acc.reduce), _stage_periods(len(acc.stages))
            if acc.stages and acc.reduce in updated and loops and loops[-1] in done:
                step = self._step_number(emitter, acc.reduce)
                self._fold_due(emitter, step, periods, partial(fold_stage, emitter, acc))

    def fold_after_block(
        self,
        emitter: FunctionEmitter,
        accumulators: Sequence[RegisterAccumulator],
        start: str,
        size: int,
    ) -> None:
        """Fold the stages that are due after a block of vector groups.

        The block starts at `start` and has `size` elements.
        """
        number = emitter.f.let(f"sdiv i64 {start}, {size}")
        group = emitter.f.let(f"mul i64 {number}, {FIRST_STAGE_TERMS}")
        group = emitter.f.let(f"add i64 {group}, {FIRST_STAGE_TERMS - 1}")
        for acc in accumulators:
            fold_stage(emitter, acc, 0)
            later_periods = _stage_periods(len(acc.stages))[1:]
            self._fold_due(emitter, group, later_periods, partial(fold_stage, emitter, acc))

    def _fold_due(
        self,
        emitter: FunctionEmitter,
        step: str,
        periods: Sequence[tuple[int, int]],
        fold: Callable[[int], None],
    ) -> None:
        """Fold the stages that are due after a step; each period divides the next."""
        if not periods:
            return
        stage, period = periods[0]
        low = emitter.f.let(f"and i64 {step}, {period - 1}")
        with emitter.f.if_then(emitter.f.let(f"icmp eq i64 {low}, {period - 1}")):
            fold(stage)
            self._fold_due(emitter, step, periods[1:], fold)

    def _step_number(self, emitter: FunctionEmitter, r: Reduce) -> str:
        """Return the number of the current step among those of one element of the result."""
        f, total = emitter.f, ""
        inner = self.nest.schedule.loops[-1].axis
        for lp in self.reduction_loops(r):
            if lp.strip and lp.axis != inner:
                continue  # the index comes from the loop inside the tile
            extent = self.nest.kernel.extent(lp.axis)
            known_trips = static_or(extent, 0)
            index = emitter.indices[lp.axis]
            if lp.strip:
                index = f.let(f"sdiv i64 {emitter.tile_starts[lp.axis]}, {lp.strip}")
                known_trips = -(-known_trips // lp.strip)
            if total:
                trips = str(known_trips) if known_trips else emitter.size(extent)
                index = f.let(f"add i64 {f.let(f'mul i64 {total}, {trips}')}, {index}")
            total = index
        return total

    def _outer_axes(self, r: Reduce) -> list[str]:
        """Return the axes whose loops are all outside the innermost loop of a reduction."""
        order = list(self.nest.schedule.loops)
        last = order.index(self.reduction_loops(r)[-1])
        inside = {lp.axis for lp in order[last:]}
        return [lp.axis for lp in order[:last] if lp.axis not in inside]

    def _vector_groups(self) -> Dim:
        """Return the number of vector groups in a vector loop."""
        schedule, axis = self.nest.schedule, self.nest.schedule.loops[-1].axis
        strips = [lp.strip for lp in schedule.loops if lp.axis == axis and lp.strip]
        extent = strips[0] if strips else self.nest.kernel.extent(axis)
        if not isinstance(extent, int):
            return extent
        return -(-extent // (schedule.vector * schedule.unroll))


def _reductions_in(nodes: Sequence[Node]) -> Iterator[Reduce]:
    """Yield the reductions that these nodes update, at any depth."""
    for node in nodes:
        if isinstance(node, For):
            yield from _reductions_in(node.body)
        elif isinstance(node, StmtNode) and isinstance(node.stmt, Reduce):
            yield node.stmt


def _stage_periods(count: int, rows: int = 1) -> list[tuple[int, int]]:
    """Return each stage with the number of steps between its folds."""
    return [(k, stage_period(k) * rows) for k in range(count)]
