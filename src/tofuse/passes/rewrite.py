"""Applies local rewrite rules in one sweep over a graph, operands before users."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Union

from tofuse.ir.graph import Attr, Graph, Op, Operand, Value, substitute
from tofuse.ops.aten_aliases import is_view
from tofuse.ops.result_types import infer

Rewrite = Union[Value, tuple[Op, ...]]  # noqa: UP007

VIEWS = frozenset({"reshape", "permute", "slice", "broadcast"})

# PyTorch's own operators that look at where in memory their operand begins.
PLACING = frozenset(("aten.as_strided.default", "aten.view.dtype", "aten.view_as_complex.default"))


class Sweep:
    """The program as rewritten so far; what rules ask about it, and how they build ops."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[Op] = []
        self.producer: dict[Value, Op] = {}
        self.mapping: dict[Value, Value] = {}
        self.changed = False
        self._next_name = 0

    def define(self, x: Operand, kind: str) -> Op | None:
        """The op that defines `x`, if it is of that kind."""
        op = self.producer.get(x) if isinstance(x, Value) else None
        return op if op is not None and op.kind == kind else None

    def make(self, kind: str, operands: tuple[Operand, ...], *, like: Op, **attrs: Attr) -> Op:
        """A new op with a new result of the inferred type, at the user's line of `like`."""
        device = like.result.type.device
        type_ = replace(infer(kind, operands, attrs), device=device)
        return Op(kind, operands, (Value(type_, self.fresh()),), tuple(attrs.items()), like.loc)

    def fresh(self) -> str:
        """A name that no value of the graph has."""
        while (name := f"t{self._next_name}") in self._names:
            self._next_name += 1
        self._next_name += 1
        return name

    def instead(self, op: Op, value: Operand, *, copied: bool | None = None) -> Value | None:
        """`value`, if it can take the place of the result of `op` for every reader.

        It cannot where a caller or PyTorch's own operator would see other strides, or an operator
        where it lies, nor where the caller would get one tensor's memory twice, or an input's, or
        its elements in another order or not all of them, and eager makes a copy.
        `copied` says whether eager does; without it, whether `op` is a view.
        """
        if copied is None:
            copied = op.kind not in VIEWS
        old = op.result
        if not isinstance(value, Value) or value.type != old.type:
            return None
        if old in self._rigid and old.layout != value.layout:
            return None
        if old in self._placed:
            return None
        if old in self._exposed:
            root = self.root(value)
            if copied and (root in self._inputs or root in self._exposed):
                return None
            if copied and not self._relabels(value):
                return None
            self._exposed |= {root, value}
        return value

    def is_shown_besides(self, value: Value) -> bool:
        """Whether the caller sees a view, and some of its memory through what is no view of it."""
        if value not in self._exposed:
            return False
        mine = self._memory(value)
        for output in self.graph.outputs:
            other = self._memory(output) if output is not None else (value,)
            if value in other or other[-1] is not mine[-1]:
                continue
            meet = next(v for v in other if v in mine)
            ways = [line[line.index(meet) - 1] for line in (mine, other) if line[0] is not meet]
            if len(ways) < 2 or not _apart(*(self._given[v] for v in ways)):
                return True
        return False

    def is_private(self, value: Value) -> bool:
        """Whether nobody outside the rewritten ops sees the value's strides or its memory."""
        return value not in self._rigid and value not in self._exposed

    def readers(self, value: Value) -> Sequence[Op]:
        """The ops of the given graph that read one of its values."""
        return self._readers.get(value, ())

    def emit(self, op: Op) -> None:
        """Append an op to the rewritten program."""
        self.ops.append(op)
        for r in op.results:
            self.producer[r] = op

    def drop(self, op: Op, value: Value) -> None:
        """Leave out `op`, and let `value` stand for its result."""
        self.mapping[op.result] = value
        self.changed = True

    def current(self, op: Op) -> Op:
        """The op with its operands as they are called by now."""
        if self.mapping and any(x in self.mapping for x in op.inputs):
            return replace(op, operands=substitute(op.operands, self.mapping))
        return op

    def result(self) -> Graph:
        """The rewritten graph; the same object if nothing was rewritten."""
        if not self.changed:
            return self.graph
        outputs = tuple(None if v is None else self.mapping.get(v, v) for v in self.graph.outputs)
        return replace(self.graph, ops=tuple(self.ops), outputs=outputs)

    def root(self, value: Value) -> Value:
        """The value whose memory this one is a view of."""
        while (op := self.producer.get(value)) is not None and may_alias(op):
            value = op.inputs[0]
        return value

    def _relabels(self, value: Value) -> bool:
        """Whether it is all of somebody's memory, in order."""
        while (op := self.producer.get(value)) is not None and op.kind == "reshape":
            value = op.inputs[0]
        return self.root(value) is value

    def _memory(self, value: Value) -> tuple[Value, ...]:
        """A value of the given graph, what it is a view of, and so on to whose memory it is."""
        found = [value]
        while (op := self._given.get(found[-1])) is not None and may_alias(op):
            found.append(op.inputs[0])
        return tuple(found)

    @cached_property
    def _given(self) -> dict[Value, Op]:
        return {r: op for op in self.graph.ops for r in op.results}

    @cached_property
    def _readers(self) -> dict[Value, list[Op]]:
        return self.graph.users()

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(v.name for v in self.graph.values())

    @cached_property
    def _inputs(self) -> frozenset[Value]:
        return frozenset(self.graph.inputs)

    @cached_property
    def _rigid(self) -> set[Value]:
        """The values whose strides somebody outside sees."""
        rigid = {v for v in self.graph.outputs if v is not None}
        rigid.update(v for op in self.graph.ops if op.kind == "opaque" for v in op.inputs)
        return rigid

    @cached_property
    def _placed(self) -> set[Value]:
        """The values of which an operator sees where they lie in memory."""
        found: set[Value] = set()
        for op in reversed(self.graph.ops):
            looks = op.kind == "opaque" and op.attr("target") in PLACING
            if looks or (may_alias(op) and not found.isdisjoint(op.results)):
                found.update(op.inputs)
        return found

    @cached_property
    def _exposed(self) -> set[Value]:
        return exposed(self.graph)


def _apart(a: Op, b: Op) -> bool:
    """Whether two views of one value are slices without a common element."""
    if a.kind != "slice" or b.kind != "slice":
        return False
    return any(max(p) < min(q) or max(q) < min(p) for p, q in zip(_ends(a), _ends(b), strict=True))


def _ends(op: Op) -> list[tuple[float, float]]:
    """The first and the last place that a slice reads of each dimension, as far as is known."""
    rows = zip(op.dims("start"), op.ints("step"), op.result.shape, strict=True)
    return [
        (a, a + (n - 1) * s) if isinstance(a, int) and isinstance(n, int) else (0, math.inf)
        for a, s, n in rows
    ]


def exposed(graph: Graph) -> set[Value]:
    """The values whose memory a caller may see: outputs, and what outputs are views of."""
    seen = {v for v in graph.outputs if v is not None}
    for op in reversed(graph.ops):
        if may_alias(op) and not seen.isdisjoint(op.results):
            seen.update(op.inputs)
    return seen


def may_alias(op: Op) -> bool:
    """Whether an op's result may share memory with its operand."""
    if op.kind != "opaque":
        return op.kind in VIEWS
    return bool(op.inputs) and is_view(str(op.attr("target")))


Rule = Callable[[Op, Sweep], Rewrite | None]


def rewrite(graph: Graph, rules: Mapping[str, tuple[Rule, ...]]) -> Graph:
    """The graph with the rules of each op's kind applied until none applies.

    A rule gives None, or a value that stands for the op's result, or ops in its place, the last
    of which defines the op's result. The same object comes back if no rule applied.
    """
    sweep = Sweep(graph)
    for op in graph.ops:
        pending = [op]
        while pending:
            current = sweep.current(pending.pop())
            found = _first(current, sweep, rules.get(current.kind, ()))
            if found is None:
                sweep.emit(current)
            elif isinstance(found, Value):
                sweep.drop(current, found)
            else:
                sweep.changed = True
                pending.extend(reversed(found))
    return sweep.result()


def _first(op: Op, sweep: Sweep, rules: tuple[Rule, ...]) -> Rewrite | None:
    for rule in rules:
        found = rule(op, sweep)
        if found is not None:
            return found
    return None
