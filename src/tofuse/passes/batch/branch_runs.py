"""Finds runs of neighbouring branches that match where not all of a join's branches do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.ir.graph import Graph, Op, Value
from tofuse.passes.batch.branch_match import Branches, Step
from tofuse.passes.rewrite import Sweep

BranchRange = tuple[int, int]  # the first branch, and the one after the last


def matching_runs(values: Sequence[Value], branches: Branches) -> list[BranchRange]:
    """The longest runs of two and more neighbours that compute the same, in order."""
    found: list[BranchRange] = []
    start = 0
    for k in range(1, len(values) + 1):
        if k < len(values) and _alike(branches, tuple(values[k - 1 : k + 1])):
            continue
        if k - start > 1 and _alike(branches, tuple(values[start:k])):
            found.append((start, k))
        start = k
    return found


def nest_runs(graph: Graph, cats: Sequence[Op]) -> tuple[Graph, dict[Op, Op]]:
    """cat(a, b, c) = cat(cat(a, b), c) for runs that match, and the cat that each new one is from.

    The same graph comes back where there is no such run.
    """
    sweep, branches = Sweep(graph), Branches(graph)
    inner: dict[Op, Op] = {}
    chosen = set(cats)
    for op in graph.ops:
        runs = matching_runs(op.inputs, branches) if op in chosen else []
        if not runs or runs == [(0, len(op.inputs))]:
            sweep.emit(op)
            continue
        pieces: list[Value] = []
        for k, v in enumerate(op.inputs):
            run = next(((a, b) for a, b in runs if a <= k < b), None)
            if run is None:
                pieces.append(v)
            elif k == run[0]:
                joined = sweep.make("cat", op.inputs[slice(*run)], like=op, dim=op.int("dim"))
                sweep.emit(joined)
                inner[joined] = op
                pieces.append(joined.result)
        sweep.emit(replace(op, operands=tuple(pieces)))
        sweep.changed = True
    return sweep.result(), inner


def _alike(branches: Branches, bundle: tuple[Value, ...]) -> bool:
    """Whether they match and compute something."""
    if any(v.type != bundle[0].type for v in bundle) or not branches.match(bundle):
        return False
    return isinstance(branches.nodes[bundle], Step) and not branches.is_view(bundle)
