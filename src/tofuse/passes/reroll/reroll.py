"""Graph -> Graph: the unrolled steps of a loop become one step over a dimension of time.

What a step reads of the step before becomes a `recurrence`. The kernels then do not depend on the
number of steps, and the states stay in registers or in the cache. Each step has the same ops on the
same operands: results of float32 and float64 are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from tofuse.cost.thresholds import MAX_REROLLED_LOOPS, MAX_RESULTS_OF_SINGLE_STEPS
from tofuse.ir.dims import product
from tofuse.ir.graph import Graph, Op, Scalar, Value
from tofuse.ir.region import Verdict
from tofuse.ir.rules import Rule
from tofuse.ir.types import DType
from tofuse.ops.result_types import slice_attrs
from tofuse.ops.table import reduction_identity
from tofuse.passes.reroll.batch_steps import StepBatcher
from tofuse.passes.reroll.period import Period, find_periods
from tofuse.passes.reroll.steps import (
    VIEWS,
    NotALoopError,
    Steps,
    align_steps,
    reads_same_step,
)
from tofuse.passes.rewrite import Rewriter
from tofuse.passes.toposort import toposort


def reroll(graph: Graph) -> Graph:
    """Replace the unrolled steps of loops; return `graph` itself if it has none."""
    return reroll_loops(graph)[0]


def reroll_loops(graph: Graph) -> tuple[Graph, tuple[Verdict, ...]]:
    """Return the graph without unrolled loops, and a verdict on a loop that stays unrolled."""
    keys: dict[Op, Hashable] = {}
    for _ in range(MAX_REROLLED_LOOPS):
        found = _reroll_once(graph, keys)
        if not isinstance(found, Graph):
            return graph, () if found is None else (found.verdict(graph),)
        graph = found
    return graph, ()


def has_loops(graph: Graph) -> bool:
    """Whether a graph has loops over time."""
    return any(op.kind == "recurrence" for op in graph.ops)


@dataclass(frozen=True, eq=False)
class _Unrolled:
    """Steps that read the one before, and stay as they are."""

    period: Period
    reason: NotALoopError

    def verdict(self, graph: Graph) -> Verdict:
        """Return the reason, on the edge from the first step to the second."""
        start, length = self.period.start, self.period.length
        k = next(k for k in range(start, start + length) if graph.ops[k].results)
        first, second = graph.ops[k], graph.ops[k + length]
        reason = Rule.NOT_REROLLED(self.period.steps, str(self.reason))
        return Verdict(first.result.name, second.result.name, False, reason, loc=first.loc)


def _reroll_once(graph: Graph, keys: dict[Op, Hashable]) -> Graph | _Unrolled | None:
    """Return the graph without one of its unrolled loops, or why not; None if it has none.

    `keys` keeps the keys of ops from one call to the next.
    """
    unrolled: _Unrolled | None = None
    for period in find_periods(graph, keys):
        try:
            loop = _Loop(graph, align_steps(graph, period))
        except NotALoopError:
            continue
        try:
            return loop.rewritten()
        except NotALoopError as reason:
            unrolled = unrolled or _Unrolled(period, reason)
    return unrolled


class _Loop:
    """A graph with the steps of a loop, and the ops that replace them."""

    def __init__(self, graph: Graph, steps: Steps) -> None:
        self.graph, self.steps = graph, steps
        self.batcher = StepBatcher(steps, Rewriter(graph))
        if not self.batcher.states:
            raise NotALoopError("no step reads an earlier one")
        if not all(v.type.on_host for v in steps.position):
            raise NotALoopError("kernels on a GPU have no loops over time")

    def rewritten(self) -> Graph:
        self.batcher.run()
        inside = self.steps.position
        kept = [op for op in self.graph.ops if not any(r in inside for r in op.results)]
        kept = [self._join_steps(op) if op.kind == "cat" else op for op in kept]
        read = {v for op in self.batcher.ops for v in op.inputs}
        read.update(v for v in self.graph.outputs if v is not None)
        live: list[Op] = []
        for op in reversed(kept):  # without the views of steps that are joined now
            if op.kind not in VIEWS or op.result in read:
                live.append(op)
                read.update(op.inputs)
        single = [v for v in inside if v in read]
        others = [v for v in single if inside[v][0] != self.steps.count - 1]
        if len(others) > MAX_RESULTS_OF_SINGLE_STEPS:
            raise NotALoopError("results of single steps are read")
        defined = [self._define(v, *inside[v]) for v in single]
        ops = toposort([*self.batcher.ops, *defined, *reversed(live)])
        if ops is None:
            raise NotALoopError("steps depend on each other through other ops")
        return replace(self.graph, ops=ops)

    def _join_steps(self, cat: Op) -> Op:
        """Return a concat whose operands from all steps, in a row, are one operand."""
        count, dim = self.steps.count, cat.int("dim")
        for first in range(len(cat.inputs) - count + 1):
            end = self._step_of(cat.inputs[first])
            if end not in (0, count - 1):
                continue
            run = cat.inputs[first : first + count]
            try:
                source = self.steps.source(list(enumerate(run if end == 0 else run[::-1])))
            except NotALoopError:
                continue
            if not reads_same_step(source):
                continue
            results = self.batcher.value(source, cat)
            if end != 0:
                attrs = slice_attrs(results, 0, count - 1, count, step=-1)
                results = self.batcher.add("slice", results, like=cat, **attrs)
            one = run[0].shape
            order = (*range(1, dim + 1), 0, *range(dim + 1, len(one) + 1))
            moved = self.batcher.add("permute", results, like=cat, dims=order)
            shape = (*one[:dim], product((count, one[dim])), *one[dim + 1 :])
            if len(run) == len(cat.inputs):
                return cat.redefined("reshape", moved, shape=shape)
            joined = self.batcher.add("reshape", moved, like=cat, shape=shape)
            operands = (*cat.operands[:first], joined, *cat.operands[first + count :])
            return replace(cat, operands=operands)
        return cat

    def _define(self, v: Value, step: int, place: int) -> Op:
        """Return an op that computes the result of one step from those of all."""
        if place in self.batcher.invariant:
            raise NotALoopError("a result that all steps compute is read after them")
        results, like = self.batcher.results[place], self.steps.places[place].op
        add, count = self.batcher.add, self.steps.count
        if step != count - 1 or v.dtype is DType.BOOL:
            part = add("slice", results, like=like, **slice_attrs(results, 0, step, 1))
            alone = add("reshape", part, like=like, shape=v.shape)
            return Op("convert", (alone,), (v,), (("dtype", v.dtype),), like.loc)  # a copy
        # The product of the last step and ones for the others: exact, and a kernel computes it in
        # the loop over the steps. A slice would read them from memory.
        number = add("iota", like=like, start=0, step=1, shape=(count,), dtype=DType.I64)
        is_last = add("eq", number, Scalar(count - 1), like=like)
        mask = add("broadcast", is_last, like=like, shape=results.shape, dims=(0,))
        one = Scalar(reduction_identity("prod", v.dtype))
        only_last = add("where", mask, results, one, like=like)
        return Op("prod", (only_last,), (v,), (("dims", (0,)), ("dtype", v.dtype)), like.loc)

    def _step_of(self, v: Value) -> int | None:
        """Return the step that computes a value, maybe through views; None if none does."""
        while v not in self.steps.position:
            op = self.steps.producers.get(v)
            if op is None or op.kind not in VIEWS:
                return None
            v = op.inputs[0]
        return self.steps.position[v][0]
