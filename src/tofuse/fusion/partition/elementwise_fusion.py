"""Recognize merges of elementwise ops that share their loops, without lowering a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tofuse.fusion.partition.graph_index import GraphIndex
from tofuse.ir.graph import Op, Value
from tofuse.ops.table import OPS, Pattern


@dataclass(eq=False)
class ElementwiseIndex:
    """A union-find of merged elementwise ops that run over the same axes.

    Ops that read slices of one value are joined too, if the slices differ only in their start.
    """

    index: GraphIndex
    parents: dict[Op, Op] = field(default_factory=dict)
    slice_readers: dict[tuple[object, ...], Op] = field(default_factory=dict)  # first of each kind

    def record_merge(self, producer: Op, consumer: Op) -> None:
        """Note that a consumer is in one group with an op that it reads."""
        if not is_elementwise(consumer):
            return
        if producer.result in consumer.inputs:
            self._union(producer, consumer)
        for v in consumer.inputs:
            if self.index.computing_ops.get(v) is producer:
                key = self._slice_key(v)
                if key is not None:
                    self._union(self.slice_readers.setdefault(key, consumer), consumer)

    def slice_reader(self, v: Value) -> Op | None:
        """Return an op, merged with the op that computes `v`, that reads a slice like `v`."""
        key = self._slice_key(v)
        return None if key is None else self.slice_readers.get(key)

    def is_trivial_kernel(self, ops: set[Op]) -> bool:
        """Whether elementwise ops certainly fit into one kernel.

        They do if all values have one shape, without views between.
        """
        shape = next(iter(ops)).result.shape
        return all(
            v.shape == shape and v in self.index.aliases.memrefs and not self._is_inner_view(v, ops)
            for op in ops
            for v in (*op.inputs, op.result)
        )

    def extends_kernel(self, op: Op, read: Sequence[Value]) -> bool:
        """Whether an op certainly fits into a kernel, from which it reads `read`.

        It does if it needs no axes but those of `read`.
        """
        if not is_elementwise(op):
            return False
        producers, computing_ops = self.index.producers, self.index.computing_ops
        peers = [
            computing_ops[v] if producers[v] is computing_ops[v] else self.slice_reader(v)
            for v in read
        ]
        if len({None if p is None else self._find(p) for p in peers}) != 1 or None in peers:
            return False
        return all(v in self.index.aliases.memrefs for v in op.inputs)

    def _slice_key(self, v: Value) -> tuple[object, ...] | None:
        """Return equal keys for slices of one value that differ only in their start."""
        view = self.index.producers.get(v)
        if view is None or view.kind != "slice" or view.inputs[0] not in self.index.computing_ops:
            return None
        return self.index.computing_ops[v], view.inputs[0], v.shape, view.attr("step")

    def _union(self, a: Op, b: Op) -> None:
        x, y = self._find(a), self._find(b)
        if x is not y:
            self.parents[y] = x

    def _find(self, op: Op) -> Op:
        while op in self.parents:
            above = self.parents[op]
            self.parents[op] = self.parents.get(above, above)  # path halving
            op = above
        return op

    def _is_inner_view(self, v: Value, ops: set[Op]) -> bool:
        """Whether a value is a view of a value computed by these ops."""
        computed_by = self.index.computing_ops.get(v)
        return computed_by in ops and self.index.producers[v] is not computed_by


def is_elementwise(op: Op) -> bool:
    return OPS[op.kind].pattern is Pattern.ELEMENTWISE
