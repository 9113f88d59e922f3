"""Whether two groups may become one kernel, by rules that need no lowered kernel."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tofuse.analysis.alias import is_communication, is_view
from tofuse.cost.thresholds import (
    MAX_KERNEL_BUFFERS,
    MAX_KERNEL_STATEMENTS,
    MAX_READER_SHAPES,
    MEMORY_ROUND_TRIP,
    MIN_OVERLAP,
)
from tofuse.fusion.concat.concat_cost import concat_too_costly, costs_more_than, is_concat_or_pad
from tofuse.fusion.partition.graph_index import GraphIndex
from tofuse.fusion.partition.groups import Group, Groups
from tofuse.fusion.partition.region_evaluator import TOO_MANY_BUFFERS, RegionEvaluator
from tofuse.fusion.partition.region_split import Split
from tofuse.ir.dims import size_hint
from tofuse.ir.fusion_hints import fusion_forbidden, fusion_requested
from tofuse.ir.graph import Op, Value, device_of
from tofuse.ir.region import Side
from tofuse.ir.rules import Reason, Rule
from tofuse.ops.table import OPS, Pattern


@dataclass(eq=False)
class MergeLegality:
    """The rules for merges of groups of one graph.

    No kernel may compute results of two parts of one of `splits`.
    """

    index: GraphIndex
    splits: Collection[Split]
    evaluator: RegionEvaluator
    too_many_shapes: dict[Op, bool] = field(default_factory=dict)  # memo, by producer
    overlaps: dict[Value, float] = field(default_factory=dict)  # memo of `_overlap`

    def rejection(self, groups: Groups, producer: Op, consumer: Op) -> Reason | None:
        """Return why the groups of two ops may not become one; None if they may."""
        a, b = groups.group_of[producer], groups.group_of[consumer]
        if is_communication(producer) or is_communication(consumer):
            return Rule.COLLECTIVE()
        if a.library and b.elementwise:
            return Rule.LIBRARY_EPILOGUE(consumer.kind)
        if a.library or b.library:
            return Rule.LIBRARY_CALL()
        if self.splits and self._is_split(a, b):
            return Rule.MORE_MEMORY()
        if a.side != b.side and None not in (a.side, b.side):
            factors = Side.FACTORS in (a.side, b.side)
            return Rule.FACTOR_OF_TWO() if factors else Rule.OTHER_ROWS()
        if fusion_forbidden(producer, consumer):
            return Rule.NO_FUSE()
        if not fusion_requested(producer, consumer):
            reason = self._cost_rejection(a, b, producer, consumer)
            if reason is not None:
                return reason
        if self._has_too_many_reader_shapes(producer):
            return Rule.TOO_MANY_SHAPES(MAX_READER_SHAPES)
        # groups of several ops have passed the device rules before
        if device_of((producer,)) != device_of((consumer,)):
            return Rule.DIFFERENT_DEVICES()
        if a.buffers.count_with(b.buffers) > MAX_KERNEL_BUFFERS:
            return TOO_MANY_BUFFERS
        if not groups.can_merge(a, b):
            return Rule.COMPUTED_BETWEEN()
        return None

    def _is_split(self, a: Group, b: Group) -> bool:
        """Whether two groups compute results of different parts of a split."""
        names = {v.name for g in (a, b) for op in g.ops for v in op.results}
        return any(sum(not part.isdisjoint(names) for part in split) > 1 for split in self.splits)

    def _cost_rejection(self, a: Group, b: Group, producer: Op, consumer: Op) -> Reason | None:
        """Return why one kernel would repeat work or be too large; a fusion hint overrides it."""
        if a.concats or b.concats:
            concats, inside = a.concats + b.concats, {*a.ops, *b.ops}
            reason = concat_too_costly(concats, inside, self.index.predecessors)
            if reason is not None:
                return reason
        if len(a.ops) + len(b.ops) > MAX_KERNEL_STATEMENTS:
            return Rule.TOO_MANY_OPS(MAX_KERNEL_STATEMENTS)
        return self._window_rejection(producer, consumer, a.ops)

    def _has_too_many_reader_shapes(self, producer: Op) -> bool:
        """Whether a result's readers have so many loop shapes that no kernel can hold them all."""
        if producer not in self.too_many_shapes:
            readers = self.index.readers[producer.result]
            shapes = {r.shape for u in readers for r in u.results}
            count = len(shapes - {producer.result.shape})
            self.too_many_shapes[producer] = count > MAX_READER_SHAPES
        return self.too_many_shapes[producer]

    def _window_rejection(self, producer: Op, consumer: Op, ops: Sequence[Op]) -> Reason | None:
        """Return why the kernel of `ops` stores a value before its overlapping windows are read.

        In one kernel, each window computes its elements again. None if that is cheap.
        """
        overlap = self._overlap(producer.result)
        if is_concat_or_pad(consumer) and len(consumer.inputs) == 1:
            overlap *= self._overlap(consumer.result)
        if overlap < MIN_OVERLAP:
            return None
        inside = {p for p in ops if OPS[p.kind].pattern in (Pattern.ELEMENTWISE, Pattern.CONCAT)}
        budget = MEMORY_ROUND_TRIP / (overlap - 1) - OPS[producer.kind].cost
        if not costs_more_than(budget, producer, inside.__contains__, self.index.predecessors):
            return None
        return Rule.OVERLAPPING_WINDOWS(f"{overlap:.0f}")

    def _overlap(self, value: Value) -> float:
        """Return the elements of all distinct windows over those of the value; 1 for one window."""
        if value not in self.overlaps:
            windows: dict[tuple[object, ...], int] = {}  # elements by place in memory
            work = [value]
            while work:
                users = self.index.users.get(v := work.pop(), ())
                views = [op.result for op in users if is_view(op)]
                work += views
                memref = self.index.aliases.memrefs.get(v)
                if memref is not None and len(views) < len(users):
                    extents = zip(v.shape, memref.strides, strict=True)
                    elements = math.prod(size_hint(n) for n, stride in extents if stride != 0)
                    windows[memref.offset, memref.strides, v.shape] = elements
            offsets = {offset for offset, *_ in windows}
            whole = max(1, size_hint(value.type.numel))
            overlap = sum(windows.values()) / whole if len(offsets) > 1 else 1.0
            self.overlaps[value] = overlap
        return self.overlaps[value]
