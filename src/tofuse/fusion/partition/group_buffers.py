"""The buffers of the kernel of a group, updated when groups merge."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.fusion.partition.graph_index import GraphIndex
from tofuse.ir.graph import Op, Value


@dataclass(frozen=True, eq=False)
class GroupBuffers:
    """What a group reads from memory and writes to it, through views.

    `loads` has the number of the group's ops that read each value, and `stores` the number of
    others that read each result of the group. A returned result has one reader more.
    """

    loads: dict[Value, int]
    stores: dict[Value, int]

    @staticmethod
    def of_op(op: Op, index: GraphIndex) -> GroupBuffers:
        """Return the buffers of a group of one op."""
        loads = dict.fromkeys((index.sources[v] for v in op.inputs), 1)
        readers = {v: len(index.readers[v]) + (v in index.returned) for v in op.results}
        return GroupBuffers(loads, {v: n for v, n in readers.items() if n})

    def __len__(self) -> int:
        return len(self.loads) + len(self.stores)

    def count_with(self, other: GroupBuffers) -> int:
        """Return the number of buffers of this group and another as one kernel.

        This takes time in proportion to the smaller one.
        """
        small, large = sorted((self, other), key=len)
        loads, stores = len(large.loads), len(large.stores) + len(small.stores)
        for v, readers in small.loads.items():
            loads += v not in large.loads and v not in large.stores
            stores -= large.stores.get(v) == readers
        for v, readers in small.stores.items():
            loads -= v in large.loads
            stores -= large.loads.get(v) == readers
        return loads + stores

    def merge(self, other: GroupBuffers) -> GroupBuffers:
        """Return the buffers of this group and another as one; both are used up."""
        small, large = sorted((self, other), key=len)
        for v, readers in small.stores.items():
            outside = readers - large.loads.pop(v, 0)
            if outside:
                large.stores[v] = outside
        for v, readers in small.loads.items():
            if v not in large.stores:
                large.loads[v] = large.loads.get(v, 0) + readers
                continue
            large.stores[v] -= readers
            if not large.stores[v]:
                del large.stores[v]
        return large
