"""Find ranges of consecutive isomorphic branches if not all branches of a concat match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.ir.graph import Graph, Op, Value
from tofuse.passes.batch.branch_match import BranchMatcher, IsomorphicOps
from tofuse.passes.rewrite import Rewriter

BranchRange = tuple[int, int]  # the first branch, and one past the last


def matching_ranges(values: Sequence[Value], matcher: BranchMatcher) -> list[BranchRange]:
    """Return the longest ranges of two or more consecutive isomorphic branches, in order."""
    ranges: list[BranchRange] = []
    start = 0
    for k in range(1, len(values) + 1):
        if k < len(values) and _is_batchable(matcher, tuple(values[k - 1 : k + 1])):
            continue
        if k - start > 1 and _is_batchable(matcher, tuple(values[start:k])):
            ranges.append((start, k))
        start = k
    return ranges


def group_matching_ranges(graph: Graph, cats: Sequence[Op]) -> tuple[Graph, dict[Op, Op]]:
    """Rewrite cat(a, b, c) to cat(cat(a, b), c) if a and b match; return the graph and the new ops.

    The new ops are a dict from each nested concat to the original one. The graph is the same object
    if there is no such range.
    """
    rewriter, matcher = Rewriter(graph), BranchMatcher(graph)
    outer_of: dict[Op, Op] = {}
    chosen = set(cats)
    for op in graph.ops:
        ranges = matching_ranges(op.inputs, matcher) if op in chosen else []
        if not ranges or ranges == [(0, len(op.inputs))]:
            rewriter.emit(op)
            continue
        operands: list[Value] = []
        for k, v in enumerate(op.inputs):
            range_ = next(((a, b) for a, b in ranges if a <= k < b), None)
            if range_ is None:
                operands.append(v)
            elif k == range_[0]:
                matching = op.inputs[slice(*range_)]
                nested = rewriter.make_op("cat", matching, like=op, dim=op.int("dim"))
                rewriter.emit(nested)
                outer_of[nested] = op
                operands.append(nested.result)
        rewriter.emit(replace(op, operands=tuple(operands)))
        rewriter.changed = True
    return rewriter.rewritten_graph(), outer_of


def _is_batchable(matcher: BranchMatcher, bundle: tuple[Value, ...]) -> bool:
    """Whether the values match and are no views of leaves."""
    if any(v.type != bundle[0].type for v in bundle) or not matcher.match(bundle):
        return False
    return isinstance(matcher.nodes[bundle], IsomorphicOps) and not matcher.is_view_of_leaf(bundle)
