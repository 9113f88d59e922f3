"""Values read in overlapping windows: one kernel would compute their elements several times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tofuse.analysis.alias import is_view
from tofuse.cost.thresholds import MEMORY_ROUND_TRIP, MIN_OVERLAP
from tofuse.fusion.concat.concat_cost import costs_more_than, is_concat_or_pad
from tofuse.fusion.partition.graph_index import GraphIndex
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Reason, Rule
from tofuse.ops.table import OPS, Pattern


@dataclass(eq=False)
class WindowReads:
    """How often the windows that read a value cover each of its elements."""

    index: GraphIndex
    overlaps: dict[Value, float] = field(default_factory=dict)  # memo

    def rejection(self, producer: Op, consumer: Op, ops: Sequence[Op]) -> Reason | None:
        """Return why the kernel of `ops` stores a value before its windows are read.

        In one kernel, each window computes its elements again. None if that is cheap.
        """
        overlap = self._overlap(producer.result) if producer.results else 1.0
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
            windows: dict[tuple[object, ...], int] = {}  # elements by offset and strides
            work = [value]
            while work:
                users = self.index.users.get(v := work.pop(), ())
                views = [op.result for op in users if is_view(op)]
                work += views
                memref = self.index.aliases.memrefs.get(v)
                if memref is not None and len(views) < len(users):
                    extents = zip(v.shape, memref.strides, strict=True)
                    elements = math.prod(size_hint(n) for n, stride in extents if stride != 0)
                    windows[memref.offset, memref.strides] = elements
            offsets = {offset for offset, _ in windows}
            whole = max(1, size_hint(value.type.numel))
            overlap = sum(windows.values()) / whole if len(offsets) > 1 else 1.0
            self.overlaps[value] = overlap
        return self.overlaps[value]
