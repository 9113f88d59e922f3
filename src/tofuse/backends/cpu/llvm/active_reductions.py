"""The reductions in progress: where each one accumulates, and when it begins and ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Union

from tofuse.backends.cpu.llvm.function_emitter import EmittedValue, FunctionEmitter
from tofuse.backends.cpu.llvm.reduce import (
    RegisterAccumulator,
    combine,
    fold_into,
    fold_pairs,
    fold_stage,
    horizontal_reduce,
    new_accumulator,
    update,
)
from tofuse.backends.cpu.llvm.scratch_accumulators import (
    fold_array_stage,
    fold_into_array,
    fold_stages,
    reset_arrays,
    store_partial,
    update_array,
)
from tofuse.cost.thresholds import MAX_INNER_SUM_GROUPS, MAX_PRODUCT_SUM_CHAINS
from tofuse.ir.dims import Dim, static_or
from tofuse.ir.kernel import WRITES, Compute, Reduce, Stmt, iteration_axes
from tofuse.ir.nest import Accumulator, For, Nest, Node, StmtNode, statements_in
from tofuse.ir.schedule import Loop
from tofuse.ir.staged_sum import (
    FIRST_STAGE_TERMS,
    is_staged,
    sequential_steps,
    stage_count,
    stage_period,
)
from tofuse.ir.types import DType

OuterAccumulator = Union[RegisterAccumulator, Accumulator]  # noqa: UP007


class ActiveReductions:
    """The accumulators of reductions in progress, by name: in registers and in scratch arrays.

    `copied_arrays` has the arrays of copies of a reduction, for iterations that run at the same
    time: each is the original's, addressed at the copy's iteration. `array_terms` has, for a
    reduction that takes several iterations at once, the argument of each.
    """

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.in_registers: dict[str, RegisterAccumulator] = {}
        self.in_scratch: dict[str, Accumulator] = {}
        self.copied_arrays: dict[str, Accumulator] = {}
        self.array_terms: dict[str, tuple[str, ...]] = {}
        self.inner: set[str] = set()  # sums with accumulators of their own in a vector loop
        value_axes, statement_axes = iteration_axes(nest.kernel)
        self.value_axes, self.statement_axes = {**value_axes}, {**statement_axes}
        self.value_dtypes = {s.name: s.dtype for s in nest.kernel.body if not isinstance(s, WRITES)}
        self.copies: dict[tuple[Stmt, str, int], Stmt] = {}  # see `unroll_and_jam.py`
        reads = Counter(name for s in nest.kernel.body for name in s.uses)
        once = [s for s in nest.kernel.body if isinstance(s, Compute) and reads[s.name] == 1]
        self.sums = {s.name: s for s in once if s.op == "add" and len(s.uses) == 2}
        self.products = {s.name for s in once if s.op == "mul" and s.dtype.is_float}

    def add_copy(self, key: tuple[Stmt, str, int], copied: Stmt) -> None:
        """Add the copy of a statement for an iteration of the loop over an axis."""
        original, *_ = key
        self.copies[key] = copied
        self.statement_axes[copied] = self.statement_axes[original]
        if not isinstance(original, WRITES) and not isinstance(copied, WRITES):
            self.value_axes[copied.name] = self.value_axes[original.name]
            self.value_dtypes[copied.name] = original.dtype
            if original.name in self.sums and isinstance(copied, Compute):
                self.sums[copied.name] = copied
            if original.name in self.products:
                self.products.add(copied.name)

    def begin(self, emitter: FunctionEmitter, a: Accumulator) -> None:
        """Start a reduction, in registers if the result does not depend on inner loops' axes."""
        r, schedule = a.reduce, self.nest.schedule
        if a.array is not None and a.array.index.terms:
            reset_arrays(emitter, a)
            self.in_scratch[r.name] = a
            return
        in_vectors = schedule.vector > 1 and schedule.loops[-1].axis in self.statement_axes[r]
        lanes, unroll = (schedule.vector, schedule.unroll) if in_vectors else (1, 1)
        single_loop = in_vectors and not self._reduction_loops(r)
        stages = self._stages_of(r, in_vectors=single_loop)
        slots = unroll * self._chains(emitter, r) if in_vectors else unroll
        acc = new_accumulator(emitter, r, self._dtype(r), lanes, slots, stages)
        self.in_registers[r.name] = acc

    def update(self, emitter: FunctionEmitter, r: Reduce) -> None:
        """Combine the current values of a reduction's argument into its accumulator."""
        if r.name in self.in_registers:
            terms = self.products_of(r) if emitter.f.contract else (r.arg,)
            if any(t not in emitter.values for t in terms):
                terms = (r.arg,)  # a scratch array has their sum
            update(emitter, self.in_registers[r.name], terms)
        else:
            array, terms = self.array_of(r.name), self.array_terms.get(r.name, (r.arg,))
            assert array is not None
            values = [emitter.operands(t, self._dtype(r)) for t in terms]
            update_array(emitter, array, fold_pairs(values, partial(_combine_vectors, emitter, r)))

    def array_of(self, name: str) -> Accumulator | None:
        """Return the array of a reduction or of a copy of it, if it is in one."""
        return self.in_scratch.get(name) or self.copied_arrays.get(name)

    def is_column_reduction(self, r: Reduce) -> bool:
        """Whether a reduction of other axes than that of the vectors is in an array."""
        has_columns = self.nest.schedule.vector > 1
        has_columns &= self.nest.schedule.loops[-1].axis not in r.over
        return has_columns and r.position is None and self.array_of(r.name) is not None

    def products_of(self, r: Reduce) -> tuple[str, ...]:
        """Return the products whose sum a reduction adds up, or its argument.

        Each product is then one fused multiply-add.
        """
        terms = [r.arg]
        while (sum_ := next((self.sums[t] for t in terms if t in self.sums), None)) is not None:
            k = terms.index(sum_.name)
            terms[k : k + 1] = map(str, sum_.args)
        is_sum = r.op == "sum" and len(terms) > 1 and self.products.issuperset(terms)
        return tuple(terms) if is_sum else (r.arg,)

    def _chains(self, emitter: FunctionEmitter, r: Reduce) -> int:
        """Return in how many accumulators the products of one step are added: a power of two.

        Several chains of additions wait less for one another. Iterations that run at the same time
        have chains of their own.
        """
        jammed = any(lp.jam > 1 for lp in self.nest.schedule.loops)
        if jammed or not emitter.f.contract or r.name in self.in_scratch:
            return 1
        return 1 << (min(MAX_PRODUCT_SUM_CHAINS, len(self.products_of(r))).bit_length() - 1)

    def finish(self, emitter: FunctionEmitter, a: Accumulator, *, partial: bool = False) -> None:
        """Define the result of a reduction, or store this thread's `partial` one; end it."""
        acc = self.in_registers.pop(a.reduce.name, None)
        if acc is None:
            del self.in_scratch[a.reduce.name]
            if a.stages:
                fold_stages(emitter, a)
        elif partial:
            store_partial(emitter, a, acc)
        else:
            result = horizontal_reduce(emitter, acc)[-1]
            emitter.values[a.reduce.name] = EmittedValue((result,), a.reduce.dtype, 1)

    def begin_inner(self, emitter: FunctionEmitter, node: For) -> list[OuterAccumulator]:
        """Use fresh vector accumulators in a loop for reductions that began outside it.

        Sums in registers get them so that errors stay small. Arrays without the vector axis get
        them so that lanes are folded once and not at every step. Return the outer accumulators.
        """
        outer_accumulators: list[OuterAccumulator] = []
        own, schedule = {a.reduce for a in node.reductions}, self.nest.schedule
        for r in (n.stmt for n in node.body if isinstance(n, StmtNode)):
            if not isinstance(r, Reduce) or r in own:
                continue
            array, outer = self.in_scratch.get(r.name), self.in_registers.get(r.name)
            if array is not None and node.loop.axis in r.over:
                outer_accumulators.append(array)
            elif outer is not None and is_staged(r) and not self._is_vector_loop_short():
                outer_accumulators.append(outer)
            else:
                continue
            dtype, stages = self._dtype(r), self._stages_of(r, in_vectors=True)
            self.inner.add(r.name)
            lanes, slots = schedule.vector, schedule.unroll * self._chains(emitter, r)
            self.in_registers[r.name] = new_accumulator(emitter, r, dtype, lanes, slots, stages)
        return outer_accumulators

    def end_inner(
        self, emitter: FunctionEmitter, outer_accumulators: Sequence[OuterAccumulator]
    ) -> None:
        """Fold the accumulators of `begin_inner` into the outer ones and restore these."""
        for outer in outer_accumulators:
            self.inner.discard(outer.reduce.name)
            acc = self.in_registers.pop(outer.reduce.name)
            if isinstance(outer, RegisterAccumulator):
                fold_into(emitter, acc, outer)
                self.in_registers[outer.reduce.name] = outer
            else:
                fold_into_array(emitter, acc, outer)

    def _dtype(self, r: Reduce) -> DType:
        """Return the dtype of an accumulator: argmax and argmin compare their argument."""
        return self.value_dtypes[r.arg] if r.position is not None else r.dtype

    # -- stages of long sums ---------------------------------------------------------------------

    def _stages_of(self, r: Reduce, *, in_vectors: bool) -> int:
        """Return the number of stages of a sum in registers.

        `in_vectors` means that it runs in a single vector loop, else in loops around vector loops.
        """
        kernel, schedule = self.nest.kernel, self.nest.schedule
        if not is_staged(r):
            return 0
        return stage_count(
            self._vector_groups() if in_vectors else sequential_steps(kernel, schedule, r)
        )

    def _reduction_loops(self, r: Reduce) -> list[Loop]:
        """Return the loops of a reduction that do not run in vectors."""
        schedule = self.nest.schedule
        around = schedule.loops[:-1] if schedule.vector > 1 else schedule.loops
        return [lp for lp in around if lp.axis in r.over]

    def fold_due_stages(
        self, emitter: FunctionEmitter, done: Collection[Loop], body: Sequence[Node], rows: int = 1
    ) -> None:
        """After an iteration of the loops `done`, fold the due stages of sums updated in `body`.

        Later passes run the same loops without updating these sums. An iteration takes `rows`
        steps, and stages are folded after `rows` times as many.
        """
        updated = set(reductions_in(body)) if self.in_scratch or self.in_registers else set()
        for a in self.in_scratch.values():
            if a.stages and a.reduce in updated and self._reduction_loops(a.reduce)[-1] in done:
                outside, periods = self._outer_axes(a.reduce), _stage_periods(len(a.stages), rows)
                fold = partial(fold_array_stage, emitter, a, outside)
                self._fold_due(emitter, self._step_number(emitter, a.reduce), periods, fold)
        together: dict[tuple[tuple[Loop, ...], int], list[RegisterAccumulator]] = {}
        for acc in self.in_registers.values():
            loops = tuple(self._reduction_loops(acc.reduce))
            if acc.stages and acc.reduce in updated and loops and loops[-1] in done:
                together.setdefault((loops, len(acc.stages)), []).append(acc)
        for (_, count), accumulators in together.items():
            step = self._step_number(emitter, accumulators[0].reduce)
            fold_all = partial(_fold_stage_of_all, emitter, accumulators)
            self._fold_due(emitter, step, _stage_periods(count), fold_all)

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
        together: dict[int, list[RegisterAccumulator]] = {}
        for acc in accumulators:
            fold_stage(emitter, acc, 0)
            together.setdefault(len(acc.stages), []).append(acc)
        for count, accumulators in together.items():
            fold_all = partial(_fold_stage_of_all, emitter, accumulators)
            self._fold_due(emitter, group, _stage_periods(count)[1:], fold_all)

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
        for lp in self._reduction_loops(r):
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
        last = order.index(self._reduction_loops(r)[-1])
        inside = {lp.axis for lp in order[last:]}
        return [lp.axis for lp in order[:last] if lp.axis not in inside]

    def _is_vector_loop_short(self) -> bool:
        """Whether the vector loop adds few terms to a sum that began outside of it."""
        return static_or(self._vector_groups(), MAX_INNER_SUM_GROUPS + 1) <= MAX_INNER_SUM_GROUPS

    def _vector_groups(self) -> Dim:
        """Return the number of vector groups in a vector loop."""
        schedule, axis = self.nest.schedule, self.nest.schedule.loops[-1].axis
        strips = [lp.strip for lp in schedule.loops if lp.axis == axis and lp.strip]
        extent = strips[0] if strips else self.nest.kernel.extent(axis)
        if not isinstance(extent, int):
            return extent
        return -(-extent // (schedule.vector * schedule.unroll))


def _combine_vectors(
    emitter: FunctionEmitter, r: Reduce, row: Sequence[str], other: Sequence[str]
) -> Sequence[str]:
    f, lanes, pairs = emitter.f, emitter.lanes, zip(row, other, strict=True)
    return [combine(f, r, r.dtype, lanes, (a,), (b,))[0] for a, b in pairs]


def _fold_stage_of_all(
    emitter: FunctionEmitter, accumulators: Sequence[RegisterAccumulator], stage: int
) -> None:
    for acc in accumulators:
        fold_stage(emitter, acc, stage)


def reductions_in(nodes: Sequence[Node]) -> Iterator[Reduce]:
    """Yield the reductions that these nodes update, at any depth."""
    return (s for s in statements_in(nodes) if isinstance(s, Reduce))


def _stage_periods(count: int, rows: int = 1) -> list[tuple[int, int]]:
    """Return each stage with the number of steps between its folds."""
    return [(k, stage_period(k) * rows) for k in range(count)]
