"""An immutable index of a graph: producers, readers and order, with views looked through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tofuse.analysis.alias import AliasAnalysis, is_view
from tofuse.analysis.reachability import reachable
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.region import Region


@dataclass(frozen=True, eq=False)
class GraphIndex:
    """Lookup tables of one graph. A computing op is any op that is not a view.

    "Through views" means that a view stands for the value that it is a view of.
    """

    graph: Graph
    aliases: AliasAnalysis
    order: Mapping[Op, int]  # position in the program
    is_view: Mapping[Op, bool]
    producers: Mapping[Value, Op]
    users: Mapping[Value, Sequence[Op]]
    computing_ops: Mapping[Value, Op]  # the op that computes a value's elements, through views
    predecessors: Mapping[Op, list[Op]]  # the ops that compute an op's inputs, through views
    readers: Mapping[Value, list[Op]]  # computing ops through views, in program order
    returned: frozenset[Value]  # the graph's outputs, through views

    def edges(self) -> list[tuple[Op, Op]]:
        """Return pairs of computing ops whose second reads the first, in program order."""
        ops = [op for op in self.graph.ops if not self.is_view[op]]
        return [(producer, op) for op in ops for producer in self.predecessors[op]]

    def make_region(self, ops: Sequence[Op], name: str) -> Region:
        """Return a region of computing ops: with the views between them and its outputs."""
        inside, made = set(ops), {op.result for op in ops}
        views: dict[Op, None] = {}
        for op in ops:
            work = [v for v in op.inputs if v not in made]
            while work:
                v = work.pop()
                if v not in self.producers or not self.is_view[self.producers[v]]:
                    continue
                if self.computing_ops.get(v) in inside or v not in self.aliases.memrefs:
                    views[self.producers[v]] = None
                    work += self.producers[v].inputs
        members = sorted([*ops, *views], key=self.order.__getitem__)
        outputs = [
            op.result
            for op in ops
            if op.result in self.returned or not inside.issuperset(self.readers[op.result])
        ]
        return Region(name, tuple(members), tuple(outputs))


def index_graph(aliases: AliasAnalysis) -> GraphIndex:
    """Return the index of the graph that was analyzed."""
    graph = aliases.graph
    order = {op: k for k, op in enumerate(graph.ops)}
    views = {op: is_view(op) for op in graph.ops}
    computing_ops = _computing_ops(graph.ops, views)
    users = graph.users()
    values = (*graph.inputs, *(r for op in graph.ops for r in op.results))
    return GraphIndex(
        graph,
        aliases,
        order,
        views,
        graph.producers(),
        users,
        computing_ops,
        _predecessors(graph.ops, computing_ops),
        {v: _readers(v, users, views, order) for v in values},
        frozenset(aliases.root(v) for v in graph.outputs if v is not None),
    )


def _computing_ops(ops: Iterable[Op], views: Mapping[Op, bool]) -> dict[Value, Op]:
    found: dict[Value, Op] = {}
    for op in ops:
        for r in op.results:
            if views[op]:
                source = op.inputs[0]
                if source in found:
                    found[r] = found[source]
            else:
                found[r] = op
    return found


def _predecessors(ops: Iterable[Op], computing_ops: Mapping[Value, Op]) -> dict[Op, list[Op]]:
    return {
        op: list(dict.fromkeys(computing_ops[v] for v in op.inputs if v in computing_ops))
        for op in ops
    }


def _readers(
    value: Value,
    users: Mapping[Value, Sequence[Op]],
    views: Mapping[Op, bool],
    order: Mapping[Op, int],
) -> list[Op]:
    def views_of(v: Value) -> list[Value]:
        return [op.result for op in users.get(v, ()) if views[op]]

    readers = (op for v in reachable([value], views_of) for op in users.get(v, ()))
    return sorted(dict.fromkeys(op for op in readers if not views[op]), key=order.__getitem__)
