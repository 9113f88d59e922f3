"""Kernel and Schedule -> Nest: place statements in loops, in passes separated by reductions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tofuse.backends.cpu.schedule.dead_statements import dead_statements
from tofuse.backends.cpu.schedule.loop_placement import PHASE_LEVEL, LoopPlacement
from tofuse.backends.cpu.schedule.recompute import recompute_iteration_axes, statement_cost
from tofuse.backends.cpu.schedule.scan_placement import check_scans
from tofuse.backends.cpu.schedule.scratch import ScratchAllocator
from tofuse.cost.thresholds import (
    MAX_RECOMPUTE_COST,
    MAX_ROW_BYTES_KEPT_BETWEEN_PASSES,
    MEMORY_ROUND_TRIP,
    MIN_HOIST_TRIPS,
)
from tofuse.ir.dims import product, size_hint
from tofuse.ir.kernel import (
    CARRIED,
    WRITES,
    Compute,
    Definition,
    InRange,
    Iota,
    Kernel,
    Load,
    Next,
    Previous,
    Reduce,
    Uniform,
    iteration_axes,
)
from tofuse.ir.nest import For, Nest, NestStmt, Node, Phase, Reload, StmtNode
from tofuse.ir.rules import Rule
from tofuse.ir.schedule import Schedule
from tofuse.schedule.backward_slice import backward_slice
from tofuse.schedule.scatter_axes import start_stores
from tofuse.schedule.schedule_legality import Unschedulable, check_schedule


def build_nest(kernel: Kernel, schedule: Schedule, *, repeat_reductions: bool = False) -> Nest:
    """Return the loops of a kernel; raise Unschedulable if the statements do not nest that way.

    With `repeat_reductions`, if there is no other way, reductions are repeated in every iteration
    of the loops outside theirs, even of loops that they do not depend on.
    """
    check_schedule(kernel, schedule)
    try:
        placement = LoopPlacement(kernel, schedule, *iteration_axes(kernel))
        nest = dead_statements(_NestBuilder(placement).build())
        check_scans(nest)
        return nest
    except Unschedulable:
        if not repeat_reductions:
            raise
    placement = LoopPlacement(kernel, schedule, *recompute_iteration_axes(kernel, schedule))
    nest = dead_statements(_NestBuilder(placement).build())
    check_scans(nest)
    return nest


class _NestBuilder:
    def __init__(self, placement: LoopPlacement) -> None:
        self.placement, self.scratch = placement, ScratchAllocator(placement)
        self.kernel, self.schedule = placement.kernel, placement.schedule
        self.definitions: dict[str, Definition] = {
            s.name: s for s in self.kernel.body if not isinstance(s, WRITES)
        }

    def build(self) -> Nest:
        """Return the nest, with statements that later steps may find dead."""
        phases: list[Phase] = []
        body = list(self.kernel.body)
        starts = start_stores(self.kernel)
        by_loops: dict[frozenset[str], list[NestStmt]] = {}
        for s in starts:
            by_loops.setdefault(self.placement.axes(s), []).append(s)
        rest: list[NestStmt] = [s for s in body if s not in starts]
        for part in (*by_loops.values(), rest):
            for stmts in self._split_passes(part, range(self.schedule.parallel), PHASE_LEVEL):
                phases += self._phases(stmts)
        spills = {
            name: array
            for name, array in self.scratch.arrays.items()
            if not isinstance(self.definitions[name], Reduce)
        }
        seeds = dict.fromkeys(s.seed for s in body if isinstance(s, Uniform))
        keys = {seed: self.scratch.philox_keys(seed) for seed in seeds}
        return Nest(
            self.kernel, self.schedule, tuple(phases), spills, keys, self.scratch.block_bytes
        )

    # -- passes ----------------------------------------------------------------------------------

    def _split_passes(
        self, stmts: Sequence[NestStmt], levels: range, level: int
    ) -> Iterator[list[NestStmt]]:
        """Yield the statements of each pass; values of earlier passes are recomputed or reloaded.

        A pass ends at the reductions over the loops at `levels` that later statements use.
        """
        pass_of = self._assign_passes(stmts, levels, level)
        if not any(pass_of.values()):
            yield list(stmts)
            return
        order = {s: n for n, s in enumerate(stmts)}
        by_name = {s.name: s for s in stmts if not isinstance(s, WRITES)}
        members: dict[int, list[NestStmt]] = {0: []}
        for s, k in pass_of.items():
            members.setdefault(k, []).append(s)
        earlier: set[str] = set()
        for k in sorted(members):
            chosen: dict[NestStmt, NestStmt] = {s: s for s in members[k]}
            work = list(members[k])
            while work:
                for name in work.pop().uses:
                    definition = by_name.get(name)
                    if definition is None or definition in chosen or name not in earlier:
                        continue
                    replacement = self._recompute_or_reload(definition, level, earlier)
                    if replacement is None:
                        continue
                    chosen[definition] = replacement
                    if not isinstance(replacement, Reload):
                        work.append(replacement)
                    if isinstance(replacement, Previous):  # all steps run again
                        steps = (s for s in by_name.values() if isinstance(s, Next))
                        again = [s for s in steps if s.previous == name and s not in chosen]
                        chosen.update((s, s) for s in again)
                        work += again
            yield [chosen[s] for s in sorted(chosen, key=order.__getitem__)]
            earlier.update(s.name for s in members[k] if not isinstance(s, WRITES))

    def _assign_passes(
        self, stmts: Sequence[NestStmt], levels: range, level: int
    ) -> dict[NestStmt, int]:
        """Return the pass of each statement: after every reduction over `levels` that it needs.

        A statement of depth `level` or less precedes the loop of its pass, so it waits for every
        reduction inside that loop.
        """
        pass_of: dict[NestStmt, int] = {}
        by_name = {s.name: s for s in stmts if not isinstance(s, WRITES)}
        for s in stmts:
            latest = 0
            for name in s.uses:
                d = by_name.get(name)
                if d is None:
                    continue
                k = pass_of[d]
                if isinstance(d, Reduce):
                    start = self.placement.reduction_level(d)
                    k += start in levels or start > level >= self.placement.depth(s)
                latest = max(latest, k)
            pass_of[s] = latest
        return pass_of

    def _recompute_or_reload(
        self, stmt: NestStmt, level: int, earlier: set[str]
    ) -> NestStmt | None:
        """Return what makes a value of an earlier pass available; None if a register holds it."""
        if isinstance(stmt, Reload):
            return stmt
        assert not isinstance(stmt, WRITES)
        if isinstance(stmt, Reduce):
            return self._repeat_or_reload_reduction(stmt, level)
        name = stmt.name
        along = self.definitions[stmt.previous] if isinstance(stmt, Next) else stmt
        if isinstance(along, CARRIED) and self.placement.innermost_level(along.axis) < level:
            if self.scratch.spill_levels.get(name, level) > level:
                raise Unschedulable(Rule.DIFFERENT_LOOPS())  # the array has the last inner row only
            return Reload(name, self.scratch.arrays.get(name) or self.scratch.spill(stmt, level))
        if level != PHASE_LEVEL and not self.placement.inner_axes(name, level):
            return None
        if name in self.scratch.arrays:  # an array of an inner loop only has that loop's last row
            spilled = self.scratch.spill_levels[name] <= level
            return Reload(name, self.scratch.arrays[name]) if spilled else stmt
        if self.placement.is_always_recomputed(name, level):
            return stmt
        large = (
            level == PHASE_LEVEL
            or self.placement.row_bytes(name, level) > MAX_ROW_BYTES_KEPT_BETWEEN_PASSES
        )
        limit = MEMORY_ROUND_TRIP if large else MAX_RECOMPUTE_COST
        if level == PHASE_LEVEL or self._recompute_cost(name, level, earlier) <= limit:
            return stmt
        return Reload(name, self.scratch.spill(stmt, level))

    def _repeat_or_reload_reduction(self, r: Reduce, level: int) -> NestStmt | None:
        start = self.placement.reduction_level(r)
        if level == PHASE_LEVEL:
            if start >= self.schedule.parallel:
                return r
            return Reload(r.name, self.scratch.reduction_array(r, PHASE_LEVEL))
        if self.placement.varies_between(r.name, level, start):
            return r  # only the result of the last iteration of those loops is left
        if not self.placement.inner_axes(r.name, start):
            return None
        return Reload(r.name, self.scratch.reduction_array(r, start))

    def _recompute_cost(self, name: str, level: int, earlier: set[str]) -> float:
        """Return the additions per element to recompute a value from spills and registers."""
        total, work, seen = 0.0, [name], set()
        while work:
            n = work.pop()
            if n in seen or n not in earlier or n in self.scratch.arrays:
                continue
            seen.add(n)
            stmt = self.definitions[n]
            if isinstance(stmt, Reduce) or not self.placement.inner_axes(n, level):
                continue
            total += statement_cost(stmt, self.schedule.loops[-1].axis)
            work += stmt.uses
        return total

    # -- loops -----------------------------------------------------------------------------------

    def _phases(self, stmts: list[NestStmt]) -> tuple[Phase, ...]:
        """Return the phase of one pass, and a serial phase for stores outside of its band."""
        parallel, depth = self.schedule.parallel, self.placement.depth
        outer = self.schedule.loops[:parallel]
        band = tuple(lp for lp in outer if any(lp.axis in self.placement.axes(s) for s in stmts))
        partials = tuple(
            self.scratch.accumulator(s, PHASE_LEVEL)
            for s in stmts
            if isinstance(s, Reduce) and self.placement.reduction_level(s) < parallel
        )
        if not band:  # one thread runs the pass
            body = self._nodes(parallel, stmts, frozenset())
            return (Phase((), (), body, partials),)
        band_axes = frozenset(lp.axis for lp in band)
        outside, rest = self._separate_outer_stores(band_axes, stmts)
        hoisted, inside = self._hoist([s for s in rest if depth(s) > 0], band_axes, parallel)
        prologue = self._straight_line([s for s in rest if depth(s) == 0], frozenset())
        hoisted_nodes = self._nodes(parallel, hoisted, frozenset())
        body = self._nodes(parallel, inside, band_axes)
        phase = Phase(band, (*prologue, *hoisted_nodes), body, partials)
        if not outside:
            return (phase,)
        if any(map(depth, outside)) and not any(isinstance(s, Reload) for s in outside):
            raise Unschedulable(Rule.DIFFERENT_LOOPS())  # too much work for one thread
        epilogue = self._nodes(parallel, outside, frozenset())
        # after the barrier, since its stores may reuse buffers that the threads read
        return (phase, Phase((), (), epilogue, ()))

    def _nodes(
        self, level: int, stmts: list[NestStmt], outer_axes: frozenset[str]
    ) -> tuple[Node, ...]:
        """Return the passes at one level: statements before the loop, then the loop.

        `outer_axes` are the axes of the loops around it.
        """
        nodes: list[Node] = []
        depth = self.placement.depth
        for part in self._split_passes(stmts, range(level, level + 1), level):
            nodes += self._straight_line([s for s in part if depth(s) <= level], outer_axes)
            deep = [s for s in part if depth(s) > level]
            if not deep:
                continue
            loop = self.schedule.loops[level]
            loop_axes = frozenset((loop.axis,))
            outside, inside = self._separate_outer_stores(loop_axes, deep)
            hoisted, inside = self._hoist(inside, loop_axes, level, outside)
            before = {*outside, *hoisted}
            preheader = [s for s in deep if s in before]
            nodes += self._nodes(level + 1, preheader, outer_axes) if preheader else ()
            if not inside:
                continue
            accumulators = tuple(
                self.scratch.accumulator(s, level)
                for s in inside
                if isinstance(s, Reduce) and self.placement.reduction_level(s) == level
            )
            carries = tuple(
                self.scratch.carry(s, level)
                for s in inside
                if isinstance(s, CARRIED) and s.axis == loop.axis
            )
            body = self._nodes(level + 1, inside, outer_axes | {loop.axis})
            nodes.append(For(loop, body, accumulators, carries=carries))
        return tuple(nodes)

    def _separate_outer_stores(
        self, axes: frozenset[str], stmts: list[NestStmt]
    ) -> tuple[list[NestStmt], list[NestStmt]]:
        """Return the stores that run over none of `axes`, with their operands; and the rest.

        These stores are moved out of the loops over `axes`, so that they run once.
        """
        inside = {s for s in stmts if not axes.isdisjoint(self.placement.axes(s))}
        if not inside:
            return stmts, []
        stores: set[NestStmt] = {s for s in stmts if isinstance(s, WRITES) and s not in inside}
        if not stores:
            return [], stmts
        by_name: dict[str, NestStmt] = {s.name: s for s in stmts if not isinstance(s, WRITES)}
        needed = backward_slice(stores, by_name)
        if any(isinstance(s, Reduce) for s in needed):
            return [], stmts
        return [s for s in stmts if s in needed], [s for s in stmts if s not in stores]

    def _hoist(
        self,
        stmts: list[NestStmt],
        axes: frozenset[str],
        level: int,
        outside: Sequence[NestStmt] = (),
    ) -> tuple[list[NestStmt], list[NestStmt]]:
        """Spill expensive values that are invariant in the loops over `axes`.

        Return the statements that compute them, which share loops with those `outside`, and all
        statements with reloads in their place.
        """
        if self._jammed_trips(axes) < MIN_HOIST_TRIPS:
            return [], stmts
        by_name: dict[str, NestStmt] = {s.name: s for s in stmts if not isinstance(s, WRITES)}
        varying = {s for s in stmts if not axes.isdisjoint(self.placement.axes(s))}
        read = {u for s in varying for u in s.uses}
        beside = [*outside, *(s for s in stmts if s not in varying)]
        around = frozenset().union(*map(self.placement.axes, beside))
        reloads: dict[NestStmt, NestStmt] = {}
        needed: set[NestStmt] = set()
        for s in stmts:
            if not isinstance(s, (Compute, Load)) or s.name not in read or s in varying:
                continue
            slice_ = backward_slice([s], by_name)
            movable = all(isinstance(d, (Compute, Load, Iota, InRange, Reload)) for d in slice_)
            if not movable or self.placement.may_be_skipped(s.name, level, around):
                continue
            if self._spill_if_expensive(s, level, slice_):
                reloads[s] = Reload(s.name, self.scratch.arrays[s.name])
                needed |= slice_
        return [s for s in stmts if s in needed], [reloads.get(s, s) for s in stmts]

    def _jammed_trips(self, axes: frozenset[str]) -> float:
        """Return how often loops over some axes run their bodies, after unroll-and-jam."""
        jammed = math.prod(lp.jam for lp in self.schedule.loops if lp.axis in axes)
        return size_hint(product(self.kernel.extent(a) for a in axes)) / jammed

    def _spill_if_expensive(self, s: Compute | Load, level: int, slice_: set[NestStmt]) -> bool:
        """Spill a value that the statements `slice_` compute; return whether it is spilled."""
        spilled = s.name in self.scratch.arrays
        if self.schedule.loops[-1].axis not in self.placement.stmt_axes[s] or spilled:
            return spilled and self.scratch.spill_levels.get(s.name) == level
        needed = {d.name for d in slice_ if not isinstance(d, (Reload, *WRITES))}
        small = self.placement.row_bytes(s.name, level) <= MAX_ROW_BYTES_KEPT_BETWEEN_PASSES
        if not small or self._recompute_cost(s.name, level, needed) <= MAX_RECOMPUTE_COST:
            return False
        self.scratch.spill(s, level)
        return True

    def _straight_line(
        self, stmts: Sequence[NestStmt], outer_axes: frozenset[str]
    ) -> tuple[Node, ...]:
        """Return the nodes of statements; a store or reduction must depend on all loops around."""
        for s in stmts:
            if isinstance(s, (*WRITES, Reduce)) and not outer_axes <= self.placement.stmt_axes[s]:
                raise Unschedulable(Rule.DIFFERENT_LOOPS())
        return tuple(s if isinstance(s, Reload) else StmtNode(s) for s in stmts)
