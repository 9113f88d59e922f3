"""Name the values of a graph by position, so that two graphs print alike."""

from dataclasses import replace
from itertools import count

from tofuse.ir.graph import Graph, substitute_values


def rename(graph: Graph, inputs: bool = True) -> Graph:
    """Return the graph with values named by position: inputs a0, a1, ..., results v0, v1, ...

    If `inputs` is false, the inputs keep their names.
    """
    new = {v: replace(v, name=f"a{k}") if inputs else v for k, v in enumerate(graph.inputs)}
    taken = {v.name for v in new.values()}
    names = (f"v{k}" for k in count() if f"v{k}" not in taken)
    new |= {r: replace(r, name=next(names)) for op in graph.ops for r in op.results}
    return substitute_values(graph, new)
