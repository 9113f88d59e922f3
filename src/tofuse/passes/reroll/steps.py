"""Align the steps of an unrolled loop: where each operand of a step comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from tofuse.cost.thresholds import MAX_STEPS_READ_BACK
from tofuse.ir.graph import Graph, Op, Operand, Scalar, Value
from tofuse.passes.reroll.period import Period, form_key, op_key

VIEWS = ("slice", "reshape", "permute")


class NotALoopError(Exception):
    """The ops are not the steps of a loop that can be one kernel; the message says why."""


@dataclass(frozen=True)
class Fixed:
    """The same operand in every step."""

    operand: Operand


@dataclass(frozen=True)
class InStep:
    """The result of the op at `place`, in the same step or `back` steps before.

    The first `back` steps read `starts` instead, the oldest first.
    """

    place: int
    back: int = 0
    starts: tuple[Operand, ...] = ()


@dataclass(frozen=True, eq=False)
class Aligned:
    """One op of each step; `op` is that of the last step.

    A slice begins at `start` in the first step, and moves by `stride` along `dim` with each.
    """

    op: Op
    sources: tuple[Source, ...]
    calls: int
    start: tuple[int, ...] = ()
    dim: int = 0
    stride: int = 0


# An `Aligned` source is a view outside of the steps.
Source = Union[Fixed, InStep, Aligned]  # noqa: UP007
Row = tuple[Union[Op, None], ...]  # the ops of a step; None if the program has none  # noqa: UP007
Numbered = list[tuple[int, Operand]]  # an operand of several steps, with their numbers


class Steps:
    """The steps of a loop. `position` has the step and the place of each result."""

    def __init__(self, graph: Graph, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)
        self.producers = graph.producers()
        self.position = {
            r: (t, k)
            for t, row in enumerate(rows)
            for k, op in enumerate(row)
            if op is not None
            for r in op.results
        }
        self.places = tuple(
            self._align([(t, op) for t, op in enumerate(column) if op is not None])
            for column in zip(*rows, strict=True)
        )

    @property
    def count(self) -> int:
        return len(self.rows)

    def source(self, operands: Numbered) -> Source:
        """Return where the operands of some steps come from, in order of the steps."""
        first, (last_step, last) = operands[0][1], operands[-1]
        if all(is_same_operand(x, first) for _, x in operands):
            if isinstance(first, Value) and first in self.position:
                raise NotALoopError("all steps read the result of one of them")
            return Fixed(first)
        if isinstance(last, Value) and last in self.position:
            step, place = self.position[last]
            back = last_step - step
            starts = tuple(x for t, x in operands if t < back)
            read = [(t, self.position.get(x)) for t, x in _values(operands, back)]
            is_regular = all(at == (t - back, place) for t, at in read)
            is_regular &= len(starts) == back and len(starts) + len(read) == len(operands)
            begins = all(isinstance(x, Scalar) or x not in self.position for x in starts)
            if 0 <= back <= MAX_STEPS_READ_BACK and is_regular and begins:
                return InStep(place, back, starts)
            raise NotALoopError(f"{last.name} is not read by the same step everywhere")
        views = [(t, self.producers[x]) for t, x in _values(operands) if x in self.producers]
        if len(views) != len(operands) or any(op.kind not in VIEWS for _, op in views):
            raise NotALoopError("an operand differs in every step")
        return self._align(views)

    def _align(self, ops: Sequence[tuple[int, Op]]) -> Aligned:
        """Return what the ops of several steps have in common."""
        op, count = ops[-1][1], len(ops[-1][1].operands)
        form = form_key(op)
        if any(len(o.operands) != count or form_key(o) != form for _, o in ops):
            raise NotALoopError(f"{op.kind} is another op in some steps")
        sources = tuple(self.source([(t, o.operands[k]) for t, o in ops]) for k in range(count))
        calls = sum(o.call_count for _, o in ops)
        if op.kind != "slice":
            return Aligned(op, sources, calls)
        return Aligned(op, sources, calls, *self._slices(ops))

    def _slices(self, ops: Sequence[tuple[int, Op]]) -> tuple[tuple[int, ...], int, int]:
        """Return the first start, the dimension along which slices move, and by how much."""
        (t0, first), (t1, _) = ops[0], ops[-1]
        starts = {t: op.ints("start") for t, op in ops}
        if any(len(s) != len(first.result.shape) for s in starts.values()):
            raise NotALoopError("a slice starts at a symbolic size")
        moving = [k for k in range(len(starts[t0])) if starts[t0][k] != starts[t1][k]]
        if len(moving) > 1 or (moving and first.result.shape[moving[0]] != 1):
            raise NotALoopError("a slice is more than one element of the dimension it moves along")
        dim = moving[0] if moving else 0
        stride = (starts[t1][dim] - starts[t0][dim]) // max(1, t1 - t0)

        def at(t: int) -> tuple[int, ...]:
            return tuple(s + (t - t0) * stride * (k == dim) for k, s in enumerate(starts[t0]))

        extent, ends = first.inputs[0].shape[dim], (at(0)[dim], at(self.count - 1)[dim])
        inside = isinstance(extent, int) and all(0 <= i < extent for i in ends)
        if any(starts[t] != at(t) for t in starts) or not (inside or not stride):
            raise NotALoopError("slices do not move evenly")
        return at(0), dim, stride


def reads_same_step(source: Source) -> bool:
    """Whether a source is a result of each step itself, maybe through views, or a fixed one."""
    if isinstance(source, Aligned):
        return all(map(reads_same_step, source.sources))
    return isinstance(source, Fixed) or not source.back


def align_steps(graph: Graph, period: Period) -> Steps:
    """Return the steps of a period, and those before and after it, which lack some of the ops.

    Raises NotALoopError.
    """
    ops, first, length = graph.ops, period.start, period.length
    starts = range(first, first + period.steps * length, length)
    steps = Steps(graph, [ops[k : k + length] for k in starts])
    users = graph.users()
    for longer in (_with_step_before, _with_step_after):
        row = longer(steps, users)
        if any(op is not None for op in row):
            rows = [row, *steps.rows] if longer is _with_step_before else [*steps.rows, row]
            try:
                steps = Steps(graph, rows)
            except NotALoopError:
                continue  # that step stays as it is
    return steps


Users = Mapping[Value, Sequence[Op]]


def _with_step_before(steps: Steps, users: Users) -> Row:
    """Return the step before the first one.

    It has the ops that compute the start values, and the ops at other places that read these.
    """
    found: dict[int, Op] = {}
    for place in steps.places:
        for source in place.sources:
            if isinstance(source, InStep) and source.back and isinstance(source.starts[-1], Value):
                _match_producers(steps, source.place, source.starts[-1], found)
    for k, place in enumerate(steps.places):
        if k not in found:
            same_step = (found[s.place].result for s in _in_same_step(place) if s.place in found)
            readers = (op for v in same_step for op in users.get(v, ()))
            first = next((op for op in readers if _matches(steps, op, place, found)), None)
            if first is not None:
                _match_producers(steps, k, first.result, found)
    return tuple(found.get(k) for k in range(len(steps.places)))


def _match_producers(steps: Steps, place: int, value: Value, found: dict[int, Op]) -> None:
    """Add the op that computes `value`, as that of a place, and the ops that it depends on."""
    work = [(place, value)]
    while work:
        k, v = work.pop()
        op, aligned = steps.producers.get(v), steps.places[k]
        if k in found or op is None or not _matches(steps, op, aligned, found):
            continue
        found[k] = op
        for source, x in zip(aligned.sources, op.operands, strict=True):
            if isinstance(source, InStep) and not source.back and isinstance(x, Value):
                work.append((source.place, x))


def _with_step_after(steps: Steps, users: Users) -> Row:
    """Return the step after the last one. An op that is not in the program is None."""
    found: dict[int, Op] = {}
    for k, place in enumerate(steps.places):
        expected = [_operand_after(steps, source, found) for source in place.sources]
        values = [x for x in expected if isinstance(x, Value)]
        start = _start_after(steps, place)
        for op in (op for v in values[-1:] for op in reversed(users.get(v, ()))):
            is_new = not any(r in steps.position for r in op.results)
            if not is_new or op_key(op) != op_key(place.op):
                continue
            if place.op.kind == "slice" and op.ints("start") != start:
                continue
            pairs = zip(expected, op.operands, strict=True)
            if all(x is None or is_same_operand(x, y) for x, y in pairs):
                found[k] = op
                break
    return tuple(found.get(k) for k in range(len(steps.places)))


def _operand_after(steps: Steps, source: Source, found: Mapping[int, Op]) -> Operand | None:
    """Return an operand of the step after the last one; None if it is not known."""
    if isinstance(source, Fixed):
        return source.operand
    if not isinstance(source, InStep):
        return None
    op = steps.rows[-source.back][source.place] if source.back else found.get(source.place)
    return op.result if op is not None else None


def _start_after(steps: Steps, place: Aligned) -> tuple[int, ...]:
    moved = steps.count * place.stride
    return tuple(s + moved * (k == place.dim) for k, s in enumerate(place.start))


def _matches(steps: Steps, op: Op, place: Aligned, found: Mapping[int, Op]) -> bool:
    """Whether an op may be at a place of the step before the first one."""
    # the operands' types may differ: a start value may be a number
    if len(op.operands) != len(place.op.operands) or form_key(op) != form_key(place.op):
        return False
    if any(r in steps.position for r in op.results):
        return False
    for source, x in zip(place.sources, op.operands, strict=True):
        if isinstance(source, Fixed) and not is_same_operand(source.operand, x):
            return False
        same_step = isinstance(source, InStep) and not source.back and found.get(source.place)
        if isinstance(same_step, Op) and x is not same_step.result:
            return False
    return True


def _in_same_step(place: Aligned) -> Iterator[InStep]:
    return (s for s in place.sources if isinstance(s, InStep) and not s.back)


def is_same_operand(x: Operand, y: Operand) -> bool:
    """Whether two operands are one tensor, or equal numbers."""
    if isinstance(x, Scalar) and isinstance(y, Scalar):
        return x.key == y.key
    return x is y


def _values(operands: Numbered, first: int = 0) -> Iterator[tuple[int, Value]]:
    """Return the operands of the steps from `first` on that are tensors."""
    return ((t, x) for t, x in operands if t >= first and isinstance(x, Value))
