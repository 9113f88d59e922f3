"""Kernel and Schedule -> Nest: place statements in loops, in passes that follow the reductions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tofuse.ir.dims import Dim, fixed, hint, product
from tofuse.ir.kernel import (
    Definition,
    Kernel,
    Reduce,
    Stmt,
    Store,
    Uniform,
    affine,
    iteration_axes,
)
from tofuse.ir.nest import (
    Accumulate,
    Do,
    For,
    Nest,
    Node,
    Phase,
    Restore,
    Scratch,
)
from tofuse.ir.schedule import Schedule
from tofuse.ir.staged_sum import is_cut, stages, steps_of
from tofuse.ir.types import DType
from tofuse.schedule.dead_statements import drop_dead
from tofuse.schedule.loop_orders import Unschedulable, check_loops
from tofuse.schedule.recompute import (
    Item,
    Kept,
    repeated_axes,
    statement_cost,
    unchanged,
)

RECOMPUTE_COST = 3.0  # additions a value may cost and still be computed again, not kept
LARGE_RECOMPUTE_COST = 40.0  # the same where its row would not stay in the L2 cache
KEY_WORDS = 32  # room for the round keys of a random generator
TURNS = 8  # of a loop that make an array for a value worth while
PHASES = -1  # the level outside all loops, where one phase follows another
ROW_BYTES = 256 * 1024  # of scratch a thread, about a quarter of an L2 cache


def build_nest(kernel: Kernel, schedule: Schedule, *, repeat: bool = False) -> Nest:
    """The loops of a kernel; raises Unschedulable where its statements do not nest that way.

    With `repeat`, where that is the only way, reductions are taken again at every point of loops
    outside theirs that they do not depend on.
    """
    check_loops(kernel, schedule)
    try:
        return drop_dead(_Builder(kernel, schedule, *iteration_axes(kernel)).run())
    except Unschedulable:
        if not repeat:
            raise
    return drop_dead(_Builder(kernel, schedule, *repeated_axes(kernel, schedule)).run())


@dataclass(eq=False)
class _Builder:
    kernel: Kernel
    schedule: Schedule
    values: Mapping[str, frozenset[str]]
    runs: Mapping[Stmt, frozenset[str]]
    makers: dict[str, Definition] = field(default_factory=dict)
    scratch: dict[str, Scratch] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)  # the level that a scratch array spans
    block: Dim = 0
    places: dict[str, int] = field(default_factory=dict)
    depths: dict[Item, int] = field(default_factory=dict)
    inner: dict[tuple[frozenset[str], int], tuple[str, ...]] = field(default_factory=dict)

    def run(self) -> Nest:
        self.places = {lp.axis: k for k, lp in enumerate(self.schedule.loops)}
        self.makers = {s.name: s for s in self.kernel.body if not isinstance(s, Store)}
        phases: list[Phase] = []
        body = list(self.kernel.body)
        for items in self._passes(body, range(self.schedule.parallel), PHASES):
            phases += self._phases(items)
        saved = {n: a for n, a in self.scratch.items() if not isinstance(self.makers[n], Reduce)}
        seeds = dict.fromkeys(s.seed for s in body if isinstance(s, Uniform))
        keys = {seed: self._words(f"{seed}.keys", KEY_WORDS) for seed in seeds}
        return Nest(self.kernel, self.schedule, tuple(phases), saved, keys, self.block)

    # -- where things stand ----------------------------------------------------------------------

    def position(self, axis: str) -> int:
        """The innermost loop over an axis."""
        return self.places[axis]

    def first(self, axis: str) -> int:
        return min(k for k, lp in enumerate(self.schedule.loops) if lp.axis == axis)

    def depth(self, item: Item) -> int:
        """How many loops enclose a statement."""
        if item not in self.depths:
            self.depths[item] = max((self.places[a] + 1 for a in self.axes(item)), default=0)
        return self.depths[item]

    def axes(self, item: Item) -> frozenset[str]:
        """The axes whose loops enclose a statement."""
        return self.values[item.name] if isinstance(item, Restore) else self.runs[item]

    def opens(self, r: Reduce) -> int:
        """The outermost loop a reduction runs over."""
        return min(self.first(a) for a in r.over)

    def _stages(
        self, items: Sequence[Item], levels: range, straight: int = PHASES
    ) -> dict[Item, int]:
        """The pass of each statement: one later than every reduction over `levels` it needs.

        Statements up to depth `straight` stand before the loops of their pass, so they wait for
        every reduction in there.
        """
        stage: dict[Item, int] = {}
        by_name = {s.name: s for s in items if not isinstance(s, Store)}
        for s in items:
            latest = 0
            for name in s.uses:
                d = by_name.get(name)
                if d is None:
                    continue
                at = stage[d]
                if isinstance(d, Reduce):
                    opens = self.opens(d)
                    at += opens in levels or opens > straight >= self.depth(s)
                latest = max(latest, at)
            stage[s] = latest
        return stage

    # -- values that cross passes ----------------------------------------------------------------

    def _passes(self, items: Sequence[Item], levels: range, level: int) -> Iterator[list[Item]]:
        """The statements of each pass; what it needs of earlier ones is computed or read again."""
        stages = self._stages(items, levels, level)
        if not any(stages.values()):
            yield list(items)
            return
        order = {s: n for n, s in enumerate(items)}
        by_name = {s.name: s for s in items if not isinstance(s, Store)}
        parts: dict[int, list[Item]] = {0: []}
        for s, k in stages.items():
            parts.setdefault(k, []).append(s)
        earlier: set[str] = set()
        for k in sorted(parts):
            chosen: dict[Item, Item] = {s: s for s in parts[k]}
            work = list(parts[k])
            while work:
                for name in work.pop().uses:
                    maker = by_name.get(name)
                    if maker is None or maker in chosen or name not in earlier:
                        continue
                    again = self._again(maker, level, earlier)
                    if again is None:
                        continue
                    chosen[maker] = again
                    if not isinstance(again, Restore):
                        work.append(again)
            yield [chosen[s] for s in sorted(chosen, key=order.__getitem__)]
            earlier.update(s.name for s in parts[k] if not isinstance(s, Store))

    def _again(self, maker: Item, level: int, earlier: set[str]) -> Item | None:
        """How an earlier pass's value comes into this one; None if it is still in a register."""
        if isinstance(maker, Restore):
            return maker
        assert not isinstance(maker, Store)
        name = maker.name
        if isinstance(maker, Reduce):
            if level == PHASES and self.opens(maker) < self.schedule.parallel:
                return Restore(name, self._array(maker, PHASES))
            if level == PHASES:
                return maker
            if self._loops_between(name, level, self.opens(maker)):
                return maker  # it is gone: only the last of those loops' results is still there
            kept = self._inner_axes(name, self.opens(maker))
            return Restore(name, self._array(maker, self.opens(maker))) if kept else None
        if level != PHASES and not self._inner_axes(name, level):
            return None
        if name in self.scratch:  # an array of an inner loop holds that loop's last row only
            return Restore(name, self.scratch[name]) if self.kept[name] <= level else maker
        if self._repeats(name, level):
            return maker
        large = level == PHASES or self._row_bytes(name, level) > ROW_BYTES
        limit = LARGE_RECOMPUTE_COST if large else RECOMPUTE_COST
        if level == PHASES or self._cost(name, level, earlier) <= limit:
            return maker
        return Restore(name, self._keep(maker, level))

    def _repeats(self, name: str, level: int) -> bool:
        """Whether loops compute a value that is the same in all their turns, so that once more is
        little; or in none, where they may have none."""
        parallel = self.schedule.parallel
        own = self.values[name]
        outer = self.schedule.loops[:parallel] if level == PHASES else [self.schedule.loops[level]]
        if own.isdisjoint(lp.axis for lp in outer):
            return True
        inner = self.schedule.loops[max(level, 0) : max(self.position(a) for a in own)]
        others = {lp.axis for lp in inner} - own
        return any(fixed(self.kernel.extent(a), 0) == 0 for a in others)

    def _keep(self, maker: Definition, level: int) -> Scratch:
        """An array for a value, which holds what loops from `level` on run over."""
        name = maker.name
        self.scratch[name] = self._allocate(name, maker.dtype, self._inner_axes(name, level), level)
        self.kept[name] = level
        return self.scratch[name]

    def _cost(self, name: str, level: int, earlier: set[str]) -> float:
        """What it takes to compute a value again from what is still there."""
        total, work, seen = 0.0, [name], set()
        while work:
            n = work.pop()
            if n in seen or n not in earlier or n in self.scratch:
                continue
            seen.add(n)
            stmt = self.makers[n]
            if isinstance(stmt, Reduce) or not self._inner_axes(n, level):
                continue
            total += statement_cost(stmt, self.schedule.loops[-1].axis)
            work += stmt.uses
        return total

    def _inner_axes(self, name: str, level: int) -> tuple[str, ...]:
        """The axes of a value whose loops are at or inside `level`, outermost first."""
        key = self.values[name], level
        if key not in self.inner:
            inner = [a for a in key[0] if self.position(a) >= level]
            self.inner[key] = tuple(sorted(inner, key=self.position))
        return self.inner[key]

    def _loops_between(self, name: str, level: int, end: int) -> bool:
        """Whether a value's own loops stand from `level` on, but outside `end`."""
        return any(lp.axis in self.values[name] for lp in self.schedule.loops[level:end])

    def _extents(self, axes: Sequence[str], tiled: Sequence[str]) -> list[Dim]:
        strips = {lp.axis: lp.strip for lp in self.schedule.loops if lp.strip}
        return [strips[a] if a in tiled else self.kernel.extent(a) for a in axes]

    def _row_bytes(self, name: str, level: int) -> int:
        axes = self._inner_axes(name, level)
        return hint(product(self._extents(axes, self._tiled(axes, level)))) * 4

    def _tiled(self, axes: Sequence[str], level: int) -> tuple[str, ...]:
        """Axes whose tile loop stands outside `level`, so that an array holds one tile only."""
        return tuple(a for a in axes if self.first(a) < self.position(a) and self.first(a) < level)

    def _accumulate(self, r: Reduce, level: int) -> Accumulate:
        if level != PHASES and not self._inner_axes(r.name, level):
            return Accumulate(r)
        array = self._array(r, level)
        if r.position is None:
            return Accumulate(r, array, stages=self._stage_arrays(r, level))
        dtype = self.makers[r.arg].dtype
        axes = self._inner_axes(r.name, level)
        best = self._allocate(f"{r.name}.best", dtype, axes, level)
        return Accumulate(r, array, best)

    def _stage_arrays(self, r: Reduce, level: int) -> tuple[Scratch, ...]:
        """More arrays for a long float sum; see `Accumulate`."""
        axes = self._inner_axes(r.name, level)
        if not axes or not is_cut(r):
            return ()
        count = stages(steps_of(self.kernel, self.schedule, r))
        return tuple(self._allocate(f"{r.name}.{k}", r.dtype, axes, level) for k in range(count))

    def _array(self, r: Reduce, level: int) -> Scratch:
        if r.name not in self.scratch:
            axes = self._inner_axes(r.name, level)
            self.scratch[r.name] = self._allocate(r.name, r.dtype, axes, level)
        return self.scratch[r.name]

    def _allocate(self, name: str, dtype: DType, axes: tuple[str, ...], level: int) -> Scratch:
        tiled = self._tiled(axes, level)
        extents = self._extents(axes, tiled)
        steps = [product(extents[k + 1 :]) for k in range(len(axes))]
        elements = product(extents)
        offset = self.block
        size = product((elements, dtype.itemsize))
        padded = (size + 127) // 64 * 64 if isinstance(size, int) else size + 128
        self.block = padded + self.block
        index = affine(zip(axes, steps, strict=True))
        return Scratch(f"{name}.keep", dtype, index, elements, offset, tiled)

    def _words(self, name: str, count: int) -> Scratch:
        """Room for 32-bit words that all of a thread's loops read."""
        offset = self.block
        self.block = -(-4 * count // 64) * 64 + self.block
        return Scratch(name, DType.I32, affine([]), count, offset)

    # -- loops -----------------------------------------------------------------------------------

    def _phases(self, items: list[Item]) -> tuple[Phase, ...]:
        outer = self.schedule.loops[: self.schedule.parallel]
        band = tuple(lp for lp in outer if any(lp.axis in self.axes(s) for s in items))
        partials = tuple(
            self._accumulate(s, PHASES)
            for s in items
            if isinstance(s, Reduce) and self.opens(s) < self.schedule.parallel
        )
        if not band:  # one thread runs it all, in passes as within any loop
            body = self._nodes(self.schedule.parallel, items, frozenset())
            return (Phase((), (), body, partials),)
        shared = frozenset(lp.axis for lp in band)
        apart, rest = self._outside(shared, items)
        once, deep = self._hoist(
            [s for s in rest if self.depth(s) > 0], shared, self.schedule.parallel
        )
        head = self._straight([s for s in rest if self.depth(s) == 0], frozenset())
        begin = self._nodes(self.schedule.parallel, once, frozenset())
        body = self._nodes(self.schedule.parallel, deep, shared)
        phase = Phase(band, (*head, *begin), body, partials)
        if not apart:
            return (phase,)
        if any(self.depth(s) for s in apart) and not any(isinstance(s, Restore) for s in apart):
            raise Unschedulable("iteration spaces differ")  # not what reductions leave: much work
        after = self._nodes(self.schedule.parallel, apart, frozenset())
        return (phase, Phase((), (), after, ()))  # no thread still reads what they overwrite

    def _nodes(self, level: int, items: list[Item], around: frozenset[str]) -> tuple[Node, ...]:
        """Passes at one level: straight statements, then one loop around the deeper ones.

        `around` are the axes of the loops that enclose them.
        """
        nodes: list[Node] = []
        for part in self._passes(items, range(level, level + 1), level):
            deep = [s for s in part if self.depth(s) > level]
            nodes += self._straight([s for s in part if self.depth(s) <= level], around)
            if not deep:
                continue
            loop = self.schedule.loops[level]
            around_it = frozenset((loop.axis,))
            apart, rest = self._outside(around_it, deep)
            once, rest = self._hoist(rest, around_it, level)
            beside = {*apart, *once}
            alone = [s for s in deep if s in beside]
            deep = rest
            nodes += self._nodes(level + 1, alone, around) if alone else ()
            if not deep:
                continue
            accumulators = tuple(
                self._accumulate(s, level)
                for s in deep
                if isinstance(s, Reduce) and self.opens(s) == level
            )
            body = self._nodes(level + 1, deep, around | {loop.axis})
            nodes.append(For(loop, body, accumulators))
        return tuple(nodes)

    def _outside(self, axes: frozenset[str], items: list[Item]) -> tuple[list[Item], list[Item]]:
        """Stores that run over none of some loops' axes, with what they need, and all the rest.

        The stores get a nest of their own beside the loops, so that they happen once.
        """
        inside = {s for s in items if not axes.isdisjoint(self.axes(s))}
        if not inside:
            return items, []
        stores = {s for s in items if isinstance(s, Store) and s not in inside}
        if not stores:
            return [], items
        by_name = {s.name: s for s in items if not isinstance(s, Store)}
        needed: set[Item] = set(stores)
        work: list[Item] = list(stores)
        while work:
            s = work.pop()
            makers = [by_name[u] for u in s.uses if u in by_name]
            work += [m for m in makers if m not in needed]
            needed.update(makers)
        if any(isinstance(s, Reduce) for s in needed):
            return [], items
        return [s for s in items if s in needed], [s for s in items if s not in stores]

    def _hoist(
        self, items: list[Item], axes: frozenset[str], level: int
    ) -> tuple[list[Item], list[Item]]:
        """Costly values that loops over some axes do not change, with what they need; and the
        items, which read them back from arrays."""
        if hint(product(self.kernel.extent(a) for a in axes)) < TURNS:
            return [], items

        def changes(s: Item) -> bool:
            return not axes.isdisjoint(self.axes(s))

        def keep(s: Kept, makers: set[str]) -> bool:
            known = s.name in self.scratch
            if self.schedule.loops[-1].axis not in self.runs[s] or known:
                return known and self.kept.get(s.name) == level
            small = self._row_bytes(s.name, level) <= ROW_BYTES
            if not small or self._cost(s.name, level, makers) <= RECOMPUTE_COST:
                return False
            self._keep(s, level)
            return True

        kept, needed = unchanged(items, changes, keep)
        rest = [
            Restore(s.name, self.scratch[s.name])
            if not isinstance(s, (Restore, Store)) and s in kept
            else s
            for s in items
        ]
        return [s for s in items if s in needed], rest

    def _straight(self, items: Sequence[Item], around: frozenset[str]) -> tuple[Node, ...]:
        """Statements in place; stores and reductions must run once per point of their own axes."""
        for s in items:
            if isinstance(s, (Store, Reduce)) and not around <= self.runs[s]:
                raise Unschedulable("iteration spaces differ")
        return tuple(s if isinstance(s, Restore) else Do(s) for s in items)
