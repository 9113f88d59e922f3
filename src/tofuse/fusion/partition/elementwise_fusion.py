"""Merges of elementwise ops that fit at sight: no kernel need be looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Strided
from tofuse.ops.table import Pattern, opdef

MAX_BUFFERS = 64


@dataclass(eq=False)
class Sight:
    """What is known of a graph, and which ops in one group run over the same axes.

    `lanes` leads from an op to another on the same axes.
    """

    storage: Mapping[Value, Strided]
    producers: Mapping[Value, Op]
    makers: Mapping[Value, Op]  # through views
    returned: set[Value]
    readers: Mapping[Value, list[Op]]  # through views
    lanes: dict[Op, Op] = field(default_factory=dict)
    windows: dict[tuple[object, ...], Op] = field(default_factory=dict)  # who first read one alike

    def clear(self) -> None:
        """Forget what is in one group."""
        self.lanes, self.windows = {}, {}

    def merged(self, producer: Op, consumer: Op) -> None:
        """Note that two ops are in one group, of which the second reads the first."""
        if not is_elementwise(consumer):
            return
        if producer.result in consumer.inputs:
            self._tie(producer, consumer)
        for v in consumer.inputs:
            if self.makers.get(v) is producer and (window := self._window(v)) is not None:
                self._tie(self.windows.setdefault(window, consumer), consumer)

    def _tie(self, one: Op, other: Op) -> None:
        a, b = self._lane(one), self._lane(other)
        if a is not b:
            self.lanes[b] = a

    def _window(self, v: Value) -> tuple[object, ...] | None:
        """What is alike of slices of one value that differ in where they begin."""
        view = self.producers.get(v)
        if view is None or view.kind != "slice" or view.inputs[0] not in self.makers:
            return None
        return self.makers[v], view.inputs[0], v.shape, view.attr("step")

    def seen(self, v: Value) -> Op | None:
        """An op in the group of a value's maker that reads another such slice of it."""
        window = self._window(v)
        return None if window is None else self.windows.get(window)

    def plain(self, inside: set[Op]) -> bool:
        """Whether elementwise ops have one shape and no views between them."""
        shape = next(iter(inside)).result.shape
        alike = all(
            v.shape == shape and v in self.storage and not self._viewed(v, inside)
            for op in inside
            for v in (*op.inputs, op.result)
        )
        return alike and (len(inside) <= MAX_BUFFERS // 2 or self._buffers(inside) <= MAX_BUFFERS)

    def follows(self, op: Op, read: Sequence[Value], ops: Sequence[Op]) -> bool:
        """Whether an op only runs over the axes of what it reads of these ops, a kernel's."""
        if not is_elementwise(op):
            return False
        direct = (self.producers[v] is self.makers[v] for v in read)
        peers = [
            self.makers[v] if at_once else self.seen(v)
            for v, at_once in zip(read, direct, strict=True)
        ]
        if len({None if p is None else self._lane(p) for p in peers}) != 1 or None in peers:
            return False
        if any(v not in self.storage for v in op.inputs):
            return False
        return self._buffers({*ops, op}) <= MAX_BUFFERS

    def _lane(self, op: Op) -> Op:
        while op in self.lanes:
            after = self.lanes[op]
            self.lanes[op] = self.lanes.get(after, after)  # half the way next time
            op = after
        return op

    def _buffers(self, inside: set[Op]) -> int:
        """How many tensors a kernel of these ops reads and writes."""
        read = {self.storage[v].root for op in inside for v in op.inputs if v in self.storage}
        made = {op.result for op in inside}
        written = [v for v in made if v in self.returned or not inside.issuperset(self.readers[v])]
        return len(read - made) + len(written)

    def _viewed(self, v: Value, inside: set[Op]) -> bool:
        """Whether a value is a view of something computed in these ops."""
        return self.makers.get(v) in inside and self.producers[v] is not self.makers[v]


def is_elementwise(op: Op) -> bool:
    return opdef(op.kind).pattern is Pattern.ELEMENTWISE
