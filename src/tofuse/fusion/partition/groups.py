"""Groups of ops that grow into regions: an acyclic partition of a graph, ranked topologically."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tofuse.analysis.reachability import reachable
from tofuse.fusion.concat.concat_cost import is_concat_or_pad
from tofuse.fusion.partition.elementwise_fusion import is_elementwise
from tofuse.fusion.partition.graph_index import GraphIndex
from tofuse.fusion.partition.group_buffers import GroupBuffers
from tofuse.ir.graph import Op
from tofuse.ir.region import Side


@dataclass(eq=False)
class Group:
    """Ops that will be one kernel or one library call, in program order."""

    ops: list[Op]
    library: bool
    elementwise: bool  # no other ops
    concats: list[Op]  # the concats and pads among its ops
    rank: int  # unique, and lower than that of every successor
    buffers: GroupBuffers
    side: Side | None = None  # no kernel has ops of two sides
    predecessors: set[Group] = field(default_factory=set)  # groups that it reads from
    successors: set[Group] = field(default_factory=set)


@dataclass(eq=False)
class Groups:
    """A partition of the computing ops of a graph, acyclic at all times."""

    index: GraphIndex
    sides: Mapping[str, Side] = field(default_factory=dict)  # by the names of results
    group_of: dict[Op, Group] = field(default_factory=dict)

    def add(self, op: Op) -> None:
        """Add a group of one op, whose predecessors have groups."""
        concats = [op] if is_concat_or_pad(op) else []
        rank = len(self.group_of)
        side = next((self.sides[v.name] for v in op.results if v.name in self.sides), None)
        group = Group(
            [op],
            op.kind == "opaque",
            is_elementwise(op),
            concats,
            rank,
            GroupBuffers.of_op(op, self.index),
            side,
        )
        self.group_of[op] = group
        for p in self.index.predecessors[op]:
            group.predecessors.add(self.group_of[p])
            self.group_of[p].successors.add(group)

    def merged_ops(self, a: Group, b: Group) -> list[Op]:
        """Return the ops of two groups in program order."""
        order = self.index.order
        if order[a.ops[-1]] < order[b.ops[0]]:
            return a.ops + b.ops
        return sorted(a.ops + b.ops, key=order.__getitem__)

    def merge(self, a: Group, b: Group) -> None:
        """Merge the smaller of two groups into the other; requires `can_merge`."""
        kept, gone = (a, b) if len(a.ops) >= len(b.ops) else (b, a)
        _make_adjacent(a, b)
        for op in gone.ops:
            self.group_of[op] = kept
        kept.ops = self.merged_ops(a, b)
        kept.elementwise = a.elementwise and b.elementwise
        kept.concats = a.concats + b.concats
        kept.side = a.side or b.side
        kept.buffers = a.buffers.merge(b.buffers)
        for g in gone.predecessors:
            g.successors.remove(gone)
            g.successors.add(kept)
        for g in gone.successors:
            g.predecessors.remove(gone)
            g.predecessors.add(kept)
        kept.predecessors = (kept.predecessors | gone.predecessors) - {kept, gone}
        kept.successors = (kept.successors | gone.successors) - {kept, gone}

    def can_merge(self, a: Group, b: Group) -> bool:
        """Whether no third group lies on a path between two, so that merging makes no cycle."""
        first, last = _by_rank((a, b))
        return not any(last in g.successors for g in _descendants_before(first, last))

    def topological_order(self) -> list[Group]:
        """Return all groups, producers first, otherwise in program order."""
        order = self.index.order
        groups = list(dict.fromkeys(self.group_of[op] for op in order if op in self.group_of))
        done: set[Group] = set()
        result: list[Group] = []
        for g in groups:
            stack = [g]
            while stack:
                top = stack[-1]
                waiting = [p for p in top.predecessors if p not in done]
                if top in done:
                    stack.pop()
                elif waiting:
                    stack += sorted(waiting, key=lambda p: -order[p.ops[0]])
                else:
                    done.add(top)
                    result.append(stack.pop())
        return result


def _make_adjacent(a: Group, b: Group) -> None:
    """Give two groups that become one neighbouring ranks (Pearce and Kelly 2006).

    Of the groups ranked between them, ancestors of the second get ranks before both, and
    descendants of the first get ranks after both.
    """
    first, last = _by_rank((a, b))
    ancestors, descendants = _ancestors_after(first, last), _descendants_before(first, last)
    if not ancestors and not descendants:
        return
    moved = [*_by_rank(ancestors), first, last, *_by_rank(descendants)]
    for g, rank in zip(moved, sorted(g.rank for g in moved), strict=True):
        g.rank = rank


def _by_rank(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=lambda g: g.rank)


def _descendants_before(first: Group, last: Group) -> set[Group]:
    """Return the descendants of `first` that rank before `last`."""
    found = reachable([first], lambda group: (g for g in group.successors if g.rank < last.rank))
    return set(found) - {first}


def _ancestors_after(first: Group, last: Group) -> set[Group]:
    """Return the ancestors of `last` that rank after `first`."""
    found = reachable([last], lambda group: (g for g in group.predecessors if g.rank > first.rank))
    return set(found) - {last}
