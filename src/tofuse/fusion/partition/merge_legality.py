"""Whether two groups may become one kernel, by rules that need no lowered kernel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tofuse.cost.thresholds import MAX_READER_SHAPES, MAX_STATEMENTS
from tofuse.fusion.concat.concat_cost import concat_too_costly
from tofuse.fusion.partition.graph_index import GraphIndex
from tofuse.fusion.partition.groups import Group, Groups
from tofuse.fusion.partition.region_evaluator import RegionEvaluator
from tofuse.fusion.partition.region_split import Split
from tofuse.fusion.partition.window_reads import WindowReads
from tofuse.ir.dims import Dim
from tofuse.ir.fusion_hints import fusion_forbidden, fusion_requested
from tofuse.ir.graph import Op, device_of
from tofuse.ir.region import Reason, Rule


@dataclass(eq=False)
class MergeLegality:
    """The rules for merges of groups of one graph.

    No kernel may compute results of two parts of one of `splits`.
    """

    index: GraphIndex
    splits: Collection[Split]
    evaluator: RegionEvaluator
    window_reads: WindowReads = field(init=False)
    too_many_shapes: dict[Op, bool] = field(default_factory=dict)  # memo, by producer

    def __post_init__(self) -> None:
        self.window_reads = WindowReads(self.index)

    def rejection(self, groups: Groups, producer: Op, consumer: Op) -> Reason | None:
        """Return why the groups of two ops may not become one; None if they may."""
        a, b = groups.group_of[producer], groups.group_of[consumer]
        if a.library and b.elementwise:
            return Rule.LIBRARY_EPILOGUE(consumer.kind)
        if a.library or b.library:
            return Rule.LIBRARY_CALL()
        if self.splits and self._is_split(a, b):
            return Rule.MORE_MEMORY()
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
        if len(a.ops) + len(b.ops) > MAX_STATEMENTS:
            return Rule.TOO_MANY_OPS(MAX_STATEMENTS)
        return self.window_reads.rejection(producer, consumer, a.ops)

    def _has_too_many_reader_shapes(self, producer: Op) -> bool:
        """Whether a result's readers have so many loop shapes that no kernel can hold them all."""
        if producer not in self.too_many_shapes:
            shapes: set[tuple[Dim, ...]] = set()
            for u in self.index.readers[producer.result] if producer.results else ():
                shapes.update(r.shape for r in u.results)
                if len(shapes) > MAX_READER_SHAPES + 1:
                    break
            count = len(shapes - {producer.result.shape})
            self.too_many_shapes[producer] = count > MAX_READER_SHAPES
        return self.too_many_shapes[producer]
