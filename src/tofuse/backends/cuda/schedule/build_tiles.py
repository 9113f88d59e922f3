"""Kernel -> TileProgram: the launches of a kernel on a GPU, and the loops of each launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tofuse.backends.cuda.schedule.align_rows import align_rows
from tofuse.backends.cuda.schedule.choose_tiling import DEFAULT_LIMITS, TilingLimits, choose_tiling
from tofuse.backends.cuda.schedule.contraction_tiling import contraction_tiling, find_contractions
from tofuse.backends.cuda.schedule.sink_parameters import sink_parameters
from tofuse.backends.cuda.schedule.split_dependent_sums import split_dependent_sums
from tofuse.backends.cuda.schedule.split_launches import (
    Updates,
    reduces_over,
    runs_once,
    separate_reductions,
    separate_scalar_updates,
    split_launches,
)
from tofuse.backends.cuda.schedule.tiling_legality import check_tiling
from tofuse.cost.thresholds import MAX_KERNEL_LAUNCHES
from tofuse.ir.dims import static_or
from tofuse.ir.kernel import Kernel, Reduce, Stmt, iteration_axes
from tofuse.ir.rules import Rule
from tofuse.ir.tile import (
    Contraction,
    GpuTarget,
    Partial,
    TileLoop,
    TileNest,
    TileProgram,
    Tiling,
    TilingChoice,
    Workspace,
)
from tofuse.schedule.backward_slice import backward_slice
from tofuse.schedule.schedule_legality import Unschedulable

BY_HEURISTICS = TilingChoice()


def build_tiles(
    kernel: Kernel,
    target: GpuTarget,
    limits: TilingLimits = DEFAULT_LIMITS,
    bounds: Mapping[str, int] = MappingProxyType({}),
    updates: Updates = (),
    choice: TilingChoice = BY_HEURISTICS,
) -> TileProgram:
    """Return the launches of a kernel; raise Unschedulable if it has none on this target.

    `bounds` are the largest values that size symbols have, where they are known. `updates` are
    pairs of buffers: an argument, and the new value that the program writes into it. `choice` has
    tilings that replace those of the heuristics.
    """
    nests: list[TileNest] = []
    tilings: list[Tiling] = []
    workspaces: list[Workspace] = []
    pending = separate_scalar_updates(kernel, updates)
    if choice.separate:
        separated = separate_reductions(pending[0], 0)
        if separated is None:
            raise Unschedulable(Rule.ILLEGAL_TILING("reductions are over the same axes"))
        workspaces += separated.workspaces
        pending = [separated.first, *separated.rest, *pending[1:]]
    while pending:
        k = pending.pop(0)
        if len(nests) >= MAX_KERNEL_LAUNCHES:
            raise Unschedulable(Rule.TOO_MANY_LAUNCHES(MAX_KERNEL_LAUNCHES))
        contractions = find_contractions(k)
        try:
            tiling = _tiling_by_heuristics(k, contractions, target, limits)
        except Unschedulable:
            # a product before other reductions is a kernel of its own, with a smaller result
            separated = None if contractions else separate_reductions(k, len(workspaces))
            if separated is None:
                raise
            workspaces += separated.workspaces
            pending = [separated.first, *separated.rest, *pending]
            continue
        chunked = split_dependent_sums(k, tiling, target, len(workspaces))
        if chunked is not None and not contractions:
            workspaces += chunked.workspaces
            pending = [chunked.first, *chunked.rest, *pending]
            continue
        if len(tilings) < len(choice.tilings):
            chosen = choice.tilings[len(tilings)]
            check_tiling(k, chosen, tiling, has_product=bool(contractions))
            tiling = chosen
        tilings.append(tiling)
        split_tile = next((t for t in tiling.tiles if t.role == "split"), None)
        if split_tile is None:
            nests.append(_tile_nest(k, tiling, {}, bounds, contractions))
            continue
        split = split_launches(k, split_tile, tiling.splits, len(workspaces))
        workspaces += split.workspaces
        first, tiling = _restrict_tiling(k, split.first, tiling)
        nests.append(_tile_nest(first, tiling, split.partials, bounds, contractions))
        pending = [*split.rest, *pending]
    made = TilingChoice(tuple(tilings), choice.separate)
    return TileProgram(kernel, tuple(nests), tuple(workspaces), made)


def _tiling_by_heuristics(
    kernel: Kernel,
    contractions: tuple[Contraction, ...],
    target: GpuTarget,
    limits: TilingLimits,
) -> Tiling:
    if contractions:
        return contraction_tiling(kernel, contractions, target)
    return choose_tiling(kernel, target, limits)


def _tile_nest(
    kernel: Kernel,
    tiling: Tiling,
    partials: dict[str, Partial],
    bounds: Mapping[str, int],
    contractions: tuple[Contraction, ...],
) -> TileNest:
    """Return a launch, with its loops, and rows divided where that makes accesses wide."""
    loops = _tile_loops(kernel, tiling)
    alignment = None if contractions else align_rows(kernel, tiling, loops)
    nest = TileNest(kernel, tiling, loops, partials, bounds, contractions, alignment)
    for tile in (t for t in tiling.tiles if t.role == "whole"):
        apart = alignment.elements - 1 if alignment is not None and tile is alignment.tile else 0
        if static_or(nest.extent(tile), 0) > tile.block + apart:
            raise Unschedulable(Rule.ILLEGAL_TILING(f"the block of {tile!r}"))
    return nest


def _restrict_tiling(whole: Kernel, part: Kernel, tiling: Tiling) -> tuple[Kernel, Tiling]:
    """Return a part of a kernel with the tiles that it runs over, and all axes of these tiles."""
    used = {a.name for a in part.axes}
    tiles = tuple(t for t in tiling.tiles if used & set(t.axes) or t.role == "split")
    names = {a for t in tiles for a in t.axes}
    axes = tuple(a for a in whole.axes if a.name in names)
    return replace(part, axes=axes), replace(tiling, tiles=tiles)


def _tile_loops(kernel: Kernel, tiling: Tiling) -> tuple[TileLoop, ...]:
    """Return one loop over the looped tile for each step in the chain of dependent reductions."""
    _, stmt_axes = iteration_axes(kernel)
    looped, by_name = tiling.loop_tile, kernel.definitions
    axes = frozenset(looped.axes) if looped is not None else frozenset[str]()
    loop_of: dict[Stmt, int] = {}
    for s in kernel.body:
        operands = [by_name[u] for u in s.uses]
        loop_of[s] = max((loop_of[d] + reduces_over(d, axes) for d in operands), default=0)
    sunk = sink_parameters(kernel, tuple(axes), tiling.tiles)
    inside = {s for s in kernel.body if stmt_axes[s] & axes or s in sunk}
    loops = []
    for k in range(max(loop_of.values(), default=0) + 1):
        prologue = tuple(s for s in kernel.body if loop_of[s] == k and s not in inside)
        roots = [s for s in kernel.body if s in inside and loop_of[s] == k and runs_once(s, axes)]
        # values of earlier loops are recomputed
        needed = backward_slice(roots, by_name, lambda d: d in inside and not reduces_over(d, axes))
        body = tuple(s for s in kernel.body if s in needed)
        reductions = tuple(s for s in roots if isinstance(s, Reduce))
        loops.append(TileLoop(prologue, body, reductions))
    return tuple(loops)
