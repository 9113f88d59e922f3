"""An immutable index of a graph: producers, readers and order, with views looked through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tofuse.analysis.alias import AliasAnalysis, is_view, view_ops
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
    producers: Mapping[Value, Op]
    users: Mapping[Value, Sequence[Op]]
    computing_ops: Mapping[Value, Op]  # the op that computes a value's elements, through views
    sources: Mapping[Value, Value]  # what a value is a view of, through views; others: themselves
    predecessors: Mapping[Op, list[Op]]  # the ops that compute an op's inputs, through views
    readers: Mapping[Value, list[Op]]  # computing ops through views, in program order
    returned: frozenset[Value]  # the graph's outputs, through views

    def edges(self) -> list[tuple[Op, Op]]:
        """Return pairs of computing ops whose second reads the first, in program order."""
        ops = self.computing_ops_in_order()
        return [(producer, op) for op in ops for producer in self.predecessors[op]]

    def computing_ops_in_order(self) -> list[Op]:
        return [op for op in self.graph.ops if not is_view(op)]

    def make_region(self, ops: Sequence[Op], name: str) -> Region:
        """Return a region of computing ops: with the views between them and its outputs."""
        inside, made = set(ops), {op.result for op in ops}
        views: set[Op] = set()
        for v in (v for op in ops for v in op.inputs if v not in made):
            for view in view_ops(v, self.producers):
                x = view.result
                if self.computing_ops.get(x) not in inside and x in self.aliases.memrefs:
                    break
                views.add(view)
        members = sorted([*ops, *views], key=self.order.__getitem__)
        outputs = [
            op.result
            for op in ops
            if op.result in self.returned or not inside.issuperset(self.readers[op.result])
        ]
        return Region(name, tuple(members), tuple(outputs))


def index_graph(aliases: AliasAnalysis) -> GraphIndex:
    """Return the index of the graph that was analyzed."""
    graph, producers = aliases.graph, aliases.graph.producers()
    computing_ops: dict[Value, Op] = {}
    sources = {v: v for v in graph.values()}
    predecessors: dict[Op, list[Op]] = {}
    readers: dict[Value, list[Op]] = {v: [] for v in graph.values()}
    for op in graph.ops:
        read = [computing_ops[v] for v in op.inputs if v in computing_ops]
        predecessors[op] = list(dict.fromkeys(read))
        if is_view(op):
            sources[op.result] = sources[op.inputs[0]]
            for p in read:
                computing_ops[op.result] = p
            continue
        computing_ops |= dict.fromkeys(op.results, op)
        views = (view for v in op.inputs for view in view_ops(v, producers))
        for v in dict.fromkeys((*op.inputs, *(view.inputs[0] for view in views))):
            readers[v].append(op)
    return GraphIndex(
        graph,
        aliases,
        {op: k for k, op in enumerate(graph.ops)},
        producers,
        graph.users(),
        computing_ops,
        sources,
        predecessors,
        readers,
        frozenset(aliases.root(v) for v in graph.outputs if v is not None),
    )
