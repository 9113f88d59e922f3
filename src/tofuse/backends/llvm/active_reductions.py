"""The reductions in progress: where each one accumulates, and when it begins and ends."""

from __future__ import annotations

from tofuse.backends.llvm.function_emitter import EmittedValue, FunctionEmitter
from tofuse.backends.llvm.reduce import (
    RegisterAccumulator,
    fold_into,
    horizontal_reduce,
    new_accumulator,
    update,
)
from tofuse.backends.llvm.scratch_accumulators import (
    fold_into_array,
    fold_stages,
    reset_arrays,
    update_array,
)
from tofuse.backends.llvm.staged_accumulators import StagedSums
from tofuse.ir.kernel import Reduce, Store, iteration_axes
from tofuse.ir.nest import Accumulator, For, Nest, StmtNode
from tofuse.ir.staged_sum import is_staged
from tofuse.ir.types import DType


class ActiveReductions:
    """The accumulators of reductions in progress, by name: in registers and in scratch arrays."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.in_registers: dict[str, RegisterAccumulator] = {}
        self.in_scratch: dict[str, Accumulator] = {}
        self.staged_sums = StagedSums(nest, self.in_registers, self.in_scratch)
        _, self.statement_axes = iteration_axes(nest.kernel)
        self.value_dtypes = {s.name: s.dtype for s in nest.kernel.body if not isinstance(s, Store)}

    def begin(self, emitter: FunctionEmitter, a: Accumulator) -> RegisterAccumulator | None:
        """Start a reduction; return its accumulator if it is in registers, else None."""
        r, schedule = a.reduce, self.nest.schedule
        if a.array is not None and a.array.index.terms:
            reset_arrays(emitter, a)
            self.in_scratch[r.name] = a
            return None
        in_vectors = schedule.vector > 1 and schedule.loops[-1].axis in self.statement_axes[r]
        lanes, unroll = (schedule.vector, schedule.unroll) if in_vectors else (1, 1)
        single_loop = in_vectors and not self.staged_sums.reduction_loops(r)
        stages = self.staged_sums.stages_of(r, in_vectors=single_loop)
        acc = new_accumulator(emitter, r, self._dtype(r), lanes, unroll, stages)
        self.in_registers[r.name] = acc
        return acc

    def update(self, emitter: FunctionEmitter, r: Reduce) -> None:
        """Combine the current values of a reduction's argument into its accumulator."""
        if r.name in self.in_registers:
            update(emitter, self.in_registers[r.name])
        else:
            values = emitter.operands(r.arg, self._dtype(r))
            update_array(emitter, self.in_scratch[r.name], values)

    def finish(
        self, emitter: FunctionEmitter, a: Accumulator, acc: RegisterAccumulator | None
    ) -> None:
        """Define the result of a reduction and end it."""
        if a.stages:
            fold_stages(emitter, a)
        if acc is not None:
            result = horizontal_reduce(emitter, acc)[-1]
            emitter.values[a.reduce.name] = EmittedValue((result,), a.reduce.dtype, 1)
        self.end(a)

    def end(self, a: Accumulator) -> None:
        self.in_registers.pop(a.reduce.name, None)
        self.in_scratch.pop(a.reduce.name, None)

    def begin_inner(
        self, emitter: FunctionEmitter, node: For
    ) -> list[tuple[str, RegisterAccumulator | Accumulator]]:
        """Use fresh vector accumulators in a loop for reductions that began outside it.

        Sums in registers get them so that errors stay small. Arrays without the vector axis get
        them so that lanes are folded once and not at every step. Return the outer accumulators.
        """
        outer_accumulators: list[tuple[str, RegisterAccumulator | Accumulator]] = []
        own = {a.reduce for a in node.reductions}
        for stmt in (n.stmt for n in node.body if isinstance(n, StmtNode)):
            if not isinstance(stmt, Reduce) or stmt in own:
                continue
            array, outer = self.in_scratch.get(stmt.name), self.in_registers.get(stmt.name)
            stages = self.staged_sums.stages_of(stmt, in_vectors=True)
            if array is not None and node.loop.axis in stmt.over:
                dtype, schedule = self._dtype(stmt), self.nest.schedule
                lanes, unroll = schedule.vector, schedule.unroll
                acc = new_accumulator(emitter, stmt, dtype, lanes, unroll, stages)
                outer_accumulators.append((stmt.name, array))
            elif outer is not None and is_staged(stmt):
                unroll = len(outer.slots)
                acc = new_accumulator(emitter, stmt, outer.dtype, outer.lanes, unroll, stages)
                outer_accumulators.append((stmt.name, outer))
            else:
                continue
            self.in_registers[stmt.name] = acc
        return outer_accumulators

    def end_inner(
        self,
        emitter: FunctionEmitter,
        outer_accumulators: list[tuple[str, RegisterAccumulator | Accumulator]],
    ) -> None:
        """Fold the accumulators of `begin_inner` into the outer ones and restore these."""
        for name, outer in outer_accumulators:
            acc = self.in_registers.pop(name)
            if isinstance(outer, RegisterAccumulator):
                fold_into(emitter, acc, outer)
                self.in_registers[name] = outer
            else:
                fold_into_array(emitter, acc, outer)

    def _dtype(self, r: Reduce) -> DType:
        """Return the dtype of an accumulator: argmax and argmin compare their argument."""
        return self.value_dtypes[r.arg] if r.position is not None else r.dtype
