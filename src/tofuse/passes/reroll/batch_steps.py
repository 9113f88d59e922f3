"""Compute all steps of a loop at once: every result gets a first dimension, of the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from tofuse.analysis.reachability import reachable
from tofuse.ir.graph import Attr, Loc, Op, Operand, Scalar, Value
from tofuse.ir.recurrence import Recurrence, StepOp, StepOperand
from tofuse.ir.types import DType
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.batched_attrs import batched_attrs
from tofuse.passes.reroll.steps import (
    Aligned,
    Fixed,
    InStep,
    NotALoopError,
    Source,
    Steps,
    is_same_operand,
)
from tofuse.passes.rewrite import Rewriter

State = tuple[int, int]  # a place, and how many steps back


class StepBatcher:
    """The ops that compute all steps of a loop at once.

    `results` has the batched result of each place, or its result if all steps compute the same.
    """

    def __init__(self, steps: Steps, rewriter: Rewriter) -> None:
        self.steps, self.count = steps, steps.count
        self.rewriter = rewriter
        self.ops: list[Op] = []
        self.results: dict[int, Value] = {}
        self.invariant: set[int] = set()
        self._before: dict[State, Value] = {}
        self._spread: dict[Value, Value] = {}
        self._views: dict[Aligned, Value] = {}
        self._readers: dict[int, list[int]] = {}
        for k, place in enumerate(steps.places):
            for source in _in_steps(place):
                self._readers.setdefault(source.place, []).append(k)
        self.states = self._find_states()
        self.cycles = self._find_cycles()

    def run(self) -> None:
        """Batch every place; raise NotALoopError if that is not possible."""
        for place in self.steps.places:
            pattern = OPS[place.op.kind].pattern
            if pattern is Pattern.OPAQUE:
                raise NotALoopError(f"each step calls {place.op.attr('target')}")
            if pattern not in BATCHED:
                raise NotALoopError(f"each step has the operator {place.op.kind}")
        unit_of = {k: cycle[0] for cycle in self.cycles for k in cycle}
        members = {cycle[0]: cycle for cycle in self.cycles}
        units: dict[int, set[int]] = {}
        for k, place in enumerate(self.steps.places):
            reads = units.setdefault(unit_of.get(k, k), set())
            reads |= {unit_of.get(s.place, s.place) for s in _in_steps(place)}
        for unit, before in units.items():
            before.discard(unit)
        try:
            order = list(TopologicalSorter(units).static_order())
        except CycleError as error:
            raise NotALoopError("steps depend on each other in a circle") from error
        for unit in order:
            if unit in members:
                self._recurrence(members[unit])
            for k in members.get(unit, (unit,)):
                self.results[k] = self._batch(k, self.steps.places[k])
            if unit not in members:
                self._delay(unit)

    # -- states ----------------------------------------------------------------------------------

    def _find_states(self) -> dict[State, Operand]:
        """Return the values that steps read of earlier ones, with what the first step reads."""
        found: dict[State, Operand] = {}
        for place in self.steps.places:
            for source in _in_steps(place):
                place_dtype = self.steps.places[source.place].op.result.dtype
                for back in range(1, source.back + 1):
                    start = self._as_constant(source.starts[source.back - back], place_dtype)
                    key = source.place, back
                    other = found.setdefault(key, start)
                    if not is_same_operand(other, start):
                        raise NotALoopError("two start values of one state")
        return found

    def _as_constant(self, x: Operand, dtype: DType) -> Operand:
        """Return the constant of this dtype that fills an operand, or else the operand."""
        op = self.steps.producers.get(x) if isinstance(x, Value) else None
        if op is None or op.kind != "full" or op.result.dtype is not dtype:
            return x
        value = op.attr("value")
        return Scalar(value) if isinstance(value, (bool, int, float)) else x

    def _find_cycles(self) -> list[tuple[int, ...]]:
        """Return the places that depend on their own earlier results, a tuple for each cycle."""
        cycles: dict[int, tuple[int, ...]] = {}
        for place, _ in self.states:
            if place in cycles:
                continue
            later = reachable((place,), lambda k: self._readers.get(k, ()))
            earlier = reachable((place,), self._read_places)
            cycle = tuple(sorted(k for k in later if k in earlier))
            if len(cycle) > 1 or place in self._readers.get(place, ()):
                cycles.update(dict.fromkeys(cycle, cycle))
        return list(dict.fromkeys(cycles.values()))

    def _read_places(self, place: int) -> list[int]:
        return [s.place for s in _in_steps(self.steps.places[place])]

    def _recurrence(self, cycle: Sequence[int]) -> None:
        """Add an op for each state of a cycle: its value before each step."""
        states = sorted(s for s in self.states if s[0] in cycle)
        types = {self.steps.places[k].op.result.shape for k in cycle}
        if len(types) > 1 or any(_pattern(self.steps, k) is not ELEMENTWISE for k in cycle):
            raise NotALoopError("a state is not computed element by element")
        inputs: list[Value] = []
        arguments: list[tuple[int, str, list[Source | StepOperand]]] = []
        for k in cycle:
            place = self.steps.places[k]
            operands: list[Source | StepOperand] = []
            for source in place.sources:
                is_inside = isinstance(source, InStep) and source.place in cycle
                value = source if is_inside else self._operand(source, place.op)
                if isinstance(value, Scalar) and not isinstance(value.value, (bool, int, float)):
                    raise NotALoopError("a step of the state has a symbolic size as a number")
                if isinstance(value, Value):
                    if value not in inputs:
                        inputs.append(value)
                    operands.append(len(states) + inputs.index(value))
                else:
                    operands.append(value)
            arguments.append((k, place.op.kind, operands))
        first = len(states) + len(inputs)
        number = {k: first + n for n, k in enumerate(cycle)}

        def operand(x: Source | StepOperand) -> StepOperand:
            if isinstance(x, InStep):
                return states.index((x.place, x.back)) if x.back else number[x.place]
            assert isinstance(x, (int, Scalar))
            return x

        body = tuple(
            StepOp(kind, tuple(map(operand, xs)), self.steps.places[k].op.result.dtype)
            for k, kind, xs in arguments
        )
        after = tuple(number[k] if b == 1 else states.index((k, b - 1)) for k, b in states)
        self._add_states(Recurrence(len(states), body, after), states, inputs)

    def _delay(self, place: int) -> None:
        """Add recurrences that remember the results of a place, if later steps read them."""
        states = sorted(s for s in self.states if s[0] == place)
        if states and place in self.invariant:
            raise NotALoopError("the start value differs from what all later steps read")
        if states:
            after = tuple(len(states) if b == 1 else b - 2 for _, b in states)
            self._add_states(Recurrence(len(states), (), after), states, [self.results[place]])

    def _add_states(
        self, recurrence: Recurrence, states: Sequence[State], inputs: Sequence[Value]
    ) -> None:
        like = self.steps.places[states[0][0]].op
        starts = [self._start(self.states[s], self.steps.places[s[0]].op) for s in states]
        for k, state in enumerate(states):
            attrs = recurrence.attrs(k, self.count)
            self._before[state] = self.add("recurrence", *starts, *inputs, like=like, **attrs)

    def _start(self, start: Operand, like: Op) -> Value:
        if isinstance(start, Scalar):
            shape, dtype = like.result.shape, like.result.dtype
            return self.add("full", like=like, value=start.value, shape=shape, dtype=dtype)
        if start.type != like.result.type:
            raise NotALoopError("a state changes its type")
        return start

    # -- ops -------------------------------------------------------------------------------------

    def add(self, kind: str, *operands: Operand, like: Op, **attrs: Attr) -> Value:
        """Append an op and return its result."""
        self.ops.append(self.rewriter.make_op(kind, operands, like=like, **attrs))
        return self.ops[-1].result

    def _batch(self, place: int, aligned: Aligned) -> Value:
        """Return the result of a place in all steps."""
        fixed = [self._fixed(source) for source in aligned.sources]
        if all(x is not None for x in fixed) and not aligned.stride:
            self.invariant.add(place)
            operands = tuple(x for x in fixed if x is not None)
            attrs = dict(aligned.op.attrs)
            return self.add(aligned.op.kind, *operands, like=_located(aligned), **attrs)
        return self._batched_op(aligned)

    def _batched_op(self, aligned: Aligned) -> Value:
        op, like = aligned.op, _located(aligned)
        if op.kind == "slice" and aligned.stride:
            return self._moving_slice(aligned)
        operands = [self._operand(source, op) for source in aligned.sources]
        attrs = batched_attrs(op, self.count)
        return self.add(op.kind, *operands, like=like, **attrs)

    def _moving_slice(self, aligned: Aligned) -> Value:
        """Return a slice of one element for each step: one slice, whose dimension becomes first."""
        op, like, dim = aligned.op, _located(aligned), aligned.dim
        base = self._fixed(aligned.sources[0])
        if not isinstance(base, Value):
            raise NotALoopError("a moving slice of a result of the step")
        shape = op.result.shape
        attrs: dict[str, Attr] = {
            "start": aligned.start,
            "step": tuple(aligned.stride if k == dim else s for k, s in enumerate(op.ints("step"))),
            "shape": (*shape[:dim], self.count, *shape[dim + 1 :]),
            "dtype": op.result.dtype,
        }
        part = self.add("slice", base, like=like, **attrs)
        others = tuple(k for k in range(len(shape)) if k != dim)
        moved = self.add("permute", part, like=like, dims=(dim, *others))
        return self.add("reshape", moved, like=like, shape=(self.count, *shape))

    def value(self, source: Source, like: Op) -> Value:
        """Return a tensor operand in all steps."""
        found = self._operand(source, like)
        assert isinstance(found, Value)
        return found

    def _operand(self, source: Source, like: Op) -> Operand:
        fixed = self._fixed(source)
        if isinstance(fixed, Value):
            return self._in_every_step(fixed, like)
        if fixed is not None:
            return fixed
        if isinstance(source, InStep):
            state = source.place, source.back
            return self._before[state] if source.back else self.results[source.place]
        assert isinstance(source, Aligned)
        if source not in self._views:
            self._views[source] = self._batched_op(source)
        return self._views[source]

    def _fixed(self, source: Source) -> Operand | None:
        """Return the operand that all steps share; None if they have their own."""
        if isinstance(source, Fixed):
            return source.operand
        if isinstance(source, InStep) and not source.back and source.place in self.invariant:
            return self.results[source.place]
        return None

    def _in_every_step(self, x: Value, like: Op) -> Value:
        if x not in self._spread:
            shape, dims = (self.count, *x.shape), tuple(range(1, len(x.shape) + 1))
            self._spread[x] = self.add("broadcast", x, like=like, shape=shape, dims=dims)
        return self._spread[x]


def _located(aligned: Aligned) -> Op:
    """Return the op with a location that counts the calls of all steps."""
    loc: Loc | None = aligned.op.loc
    if loc is None:
        return aligned.op
    return replace(aligned.op, loc=replace(loc, call_count=aligned.calls))


def _pattern(steps: Steps, place: int) -> Pattern:
    return OPS[steps.places[place].op.kind].pattern


def _in_steps(place: Aligned) -> list[InStep]:
    """Return the results of steps that the op at a place reads, also through views outside."""
    found: list[InStep] = []
    for source in place.sources:
        if isinstance(source, InStep):
            found.append(source)
        elif isinstance(source, Aligned):
            found += _in_steps(source)
    return found


ELEMENTWISE = Pattern.ELEMENTWISE
BATCHED = frozenset(
    (
        *(ELEMENTWISE, Pattern.BROADCAST, Pattern.VIEW, Pattern.CONCAT, Pattern.REDUCE),
        Pattern.SOURCE,  # the same in every step
    )
)
