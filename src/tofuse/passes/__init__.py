"""Graph-to-graph passes, one per file, and their order."""

from tofuse.ir.graph import Graph
from tofuse.passes.batch.batch_branches import batch_branches
from tofuse.passes.canonicalize_views import canonicalize_views
from tofuse.passes.closed_form_reductions import closed_form_reductions
from tofuse.passes.cse import cse
from tofuse.passes.dead_code import dead_code
from tofuse.passes.fold_constants import fold_constants
from tofuse.passes.hoist_gather import hoist_gather
from tofuse.passes.matvec import matvec
from tofuse.passes.pad_add_to_concat import pad_add_to_concat
from tofuse.passes.propagate_strides import propagate_strides
from tofuse.passes.simplify import simplify

__all__ = ["GRAPH_PASSES", "run_passes"]

CLEANUP_PASSES = (
    dead_code,
    fold_constants,
    simplify,
    canonicalize_views,
    closed_form_reductions,
    pad_add_to_concat,
    cse,
)
GRAPH_PASSES = (*CLEANUP_PASSES, batch_branches, matvec, hoist_gather)


def run_passes(graph: Graph, rounds: int = 3) -> Graph:
    """Run all passes until none changes the graph, at most `rounds` times."""
    graph = pad_add_to_concat(dead_code(graph))
    graph = batch_branches(graph)  # first, so that the other passes see one branch instead of n
    for _ in range(rounds):
        before = graph
        for pass_ in GRAPH_PASSES:
            graph = pass_(graph)
        if graph is before:
            break
    graph = propagate_strides(dead_code(graph))
    return dead_code(simplify(graph))  # new strides may make a layout copy redundant
