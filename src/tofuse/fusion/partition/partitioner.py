"""Partition a graph into regions, each of them one kernel or one library call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tofuse.analysis.alias import AliasAnalysis, MemRef
from tofuse.cost.thresholds import MAX_SIBLINGS, MIN_SIBLING_SHARED_ELEMENTS
from tofuse.fusion.partition.graph_index import GraphIndex, index_graph
from tofuse.fusion.partition.groups import Group
from tofuse.fusion.partition.grow import Growth, grow
from tofuse.fusion.partition.merge_legality import MergeLegality
from tofuse.fusion.partition.region_evaluator import RegionEvaluator
from tofuse.fusion.partition.region_split import Split
from tofuse.fusion.partition.verdicts import edge_verdicts, rejected_hints, sibling_verdict
from tofuse.fusion.rounding import values_to_round
from tofuse.graph_partition import Partition
from tofuse.ir.dims import size_hint
from tofuse.ir.fusion_hints import fusion_requested
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.region import Region, Side

ViewPass = Callable[[Graph, Mapping[Value, MemRef]], Graph]
NO_SIDES: Mapping[str, Side] = {}


def form_regions(
    graph: Graph,
    evaluator: RegionEvaluator,
    view_passes: Sequence[ViewPass],
    fuel: int | None = None,
    splits: Collection[Split] = (),
    exact: bool = False,
    sides: Mapping[str, Side] = NO_SIDES,
) -> Partition:
    """Return regions in an order that runs. Deterministic: depends on the program alone.

    The `view_passes` run first. `fuel` limits the merges to the first ones. No kernel computes
    results of two parts of one of `splits`, or two of the `sides` that results have by name.
    `exact`: half-precision values are rounded after every op.
    """
    index = _index_after(view_passes, graph)
    graph = index.graph
    rounded = values_to_round(graph, exact)
    growth = grow(index, MergeLegality(index, splits, evaluator), rounded, sides)
    _fuse_siblings(growth)
    if fuel is not None:
        growth.undo_merges(fuel)
    groups = growth.groups.topological_order()
    verdicts = edge_verdicts(growth)
    return Partition(
        graph,
        tuple(_region(index, g, k) for k, g in enumerate(groups)),
        index.aliases,
        tuple(verdicts.values()),
        tuple(verdicts.get(edge) or sibling_verdict(*edge) for edge in growth.merges),
        rejected_hints(verdicts),
        rounded,
    )


def _fuse_siblings(growth: Growth) -> None:
    """Merge kernels that read the same large tensor, so that they read it once.

    Also merge readers of a small tensor that the user asks to fuse.
    """
    graph, group_of = growth.index.graph, growth.groups.group_of
    for v in graph.values():
        is_large = size_hint(v.type.numel) >= MIN_SIBLING_SHARED_ELEMENTS
        readers = [u for u in growth.index.readers[v] if not group_of[u].library]
        for u in readers[1 : 1 + MAX_SIBLINGS]:
            separate = group_of[readers[0]] is not group_of[u]
            if separate and (is_large or fusion_requested(readers[0], u)):
                growth.try_merge(readers[0], u)


def _index_after(view_passes: Sequence[ViewPass], graph: Graph) -> GraphIndex:
    """Run the passes, and return the index of the result."""
    aliases = AliasAnalysis(graph)
    for view_pass in view_passes:
        rewritten = view_pass(aliases.graph, aliases.memrefs)
        aliases = aliases if rewritten is aliases.graph else AliasAnalysis(rewritten)
    return index_graph(aliases)


def _region(index: GraphIndex, group: Group, number: int) -> Region:
    if group.library:
        (op,) = group.ops
        name = str(op.attr("target")).split(".")[1]
        return Region(f"{name}_{number}", (op,), op.results, library=True)
    return index.make_region(group.ops, _region_name(group.ops, number))


def _region_name(ops: Sequence[Op], number: int) -> str:
    """Return a name like `softmax_mul_3`: up to four words for the ops, and the region's number."""
    kinds = [op.kind for op in ops]
    remaining, words = set(kinds), []
    for word, idiom in _IDIOMS:
        if idiom <= remaining:
            words.append(word)
            remaining -= idiom
    for kind in kinds:
        if kind in remaining and kind not in words and kind not in _UNINFORMATIVE:
            words.append(kind)
    return "_".join([*(words or kinds[:1])[:4], str(number)])


_IDIOMS = (
    ("softmax", {"amax", "exp", "sum"}),
    ("norm", {"rsqrt", "sum"}),
    ("dropout", {"bernoulli"}),
    ("dropout", {"uniform", "where"}),
    ("dropout", {"uniform"}),
)
_UNINFORMATIVE = {"convert", "sub", "where", "full", "div", "ge", "lt", "le", "gt"}
