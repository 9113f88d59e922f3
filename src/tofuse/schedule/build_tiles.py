"""Kernel -> TileProgram: the launches of a kernel on a GPU, and the passes of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tofuse.ir.dims import Dim, product
from tofuse.ir.kernel import (
    Affine,
    Axis,
    Buffer,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    Take,
    Uniform,
    affine,
    iteration_axes,
    own_axes,
)
from tofuse.ir.tile import (
    GpuTarget,
    Partial,
    Pass,
    Tile,
    TileNest,
    TileProgram,
    Tiling,
    Workspace,
)
from tofuse.ir.types import DType
from tofuse.schedule.loop_orders import Unschedulable
from tofuse.schedule.tiling import choose_tiling

MOST_LAUNCHES = 8


def build_tiles(kernel: Kernel, target: GpuTarget) -> TileProgram:
    """The launches of a kernel; raises Unschedulable where it has none on this target."""
    nests: list[TileNest] = []
    spaces: list[Workspace] = []
    work = [kernel]
    while work:
        k = work.pop(0)
        if len(nests) >= MOST_LAUNCHES:
            raise Unschedulable(f"more than {MOST_LAUNCHES} launches, one after another")
        tiling = choose_tiling(k, target)
        shared = next((t for t in tiling.tiles if t.role == "share"), None)
        if shared is None:
            nests.append(TileNest(k, tiling, _passes(k, tiling.tiles)))
            continue
        first, partials, rest, made = _divide(k, shared, tiling.shares, len(spaces))
        spaces += made
        first, tiling = _covered(k, first, tiling)
        nests.append(TileNest(first, tiling, _passes(first, tiling.tiles), partials))
        work = rest + work
    return TileProgram(kernel, tuple(nests), tuple(spaces))


def _covered(whole: Kernel, part: Kernel, tiling: Tiling) -> tuple[Kernel, Tiling]:
    """A part of a kernel with those tiles of the whole that it runs over, and all their axes."""
    used = {a.name for a in part.axes}
    tiles = tuple(t for t in tiling.tiles if used & set(t.axes) or t.role == "share")
    names = {a for t in tiles for a in t.axes}
    axes = tuple(a for a in whole.axes if a.name in names)
    return replace(part, axes=axes), replace(tiling, tiles=tiles)


# -- passes ---------------------------------------------------------------------------------------


def _passes(kernel: Kernel, tiles: tuple[Tile, ...]) -> tuple[Pass, ...]:
    """One pass over the tile that moves for each reduction over it that waits for another."""
    _, runs = iteration_axes(kernel)
    moving = next((t for t in tiles if t.role in ("loop", "share")), None)
    axes = frozenset(moving.axes) if moving is not None else frozenset[str]()
    by_name = {s.name: s for s in kernel.body if not isinstance(s, Store)}
    stage: dict[Stmt, int] = {}
    for s in kernel.body:
        makers = [by_name[u] for u in s.uses]
        stage[s] = max((stage[m] + _over(m, axes) for m in makers), default=0)
    looped = {s for s in kernel.body if runs[s] & axes}
    passes = []
    for k in range(max(stage.values(), default=0) + 1):
        straight = tuple(s for s in kernel.body if stage[s] == k and s not in looped)
        ends = [s for s in kernel.body if s in looped and stage[s] == k and _ending(s, axes)]
        needed = _needed(ends, by_name, looped, axes)
        inside = tuple(s for s in kernel.body if s in needed)
        reductions = tuple(s for s in ends if isinstance(s, Reduce))
        passes.append(Pass(straight, inside, reductions))
    return tuple(passes)


def _over(stmt: Stmt, axes: frozenset[str]) -> bool:
    return isinstance(stmt, Reduce) and not axes.isdisjoint(stmt.over)


def _ending(stmt: Stmt, axes: frozenset[str]) -> bool:
    """Whether a statement must run exactly once for each point."""
    return isinstance(stmt, Store) or _over(stmt, axes)


def _needed(
    ends: Iterable[Stmt], by_name: Mapping[str, Stmt], looped: set[Stmt], axes: frozenset[str]
) -> set[Stmt]:
    """Statements of the loop that lead to `ends`, computed again where an earlier pass had them."""
    found = set(ends)
    work = list(ends)
    while work:
        for name in work.pop().uses:
            maker = by_name[name]
            if maker in looped and maker not in found and not _over(maker, axes):
                found.add(maker)
                work.append(maker)
    return found


# -- several launches -----------------------------------------------------------------------------


def _divide(
    kernel: Kernel, shared: Tile, shares: int, count: int
) -> tuple[Kernel, dict[str, Partial], list[Kernel], list[Workspace]]:
    """The launch that leaves partial reductions, and the kernels that combine and use them."""
    axes = frozenset(shared.axes)
    values, runs = iteration_axes(kernel)
    waits: dict[str, bool] = {}  # whether a value needs a reduction over the shared axes
    for s in kernel.body:
        if not isinstance(s, Store):
            waits[s.name] = _over(s, axes) or any(waits[u] for u in s.uses)
    ready = [
        s
        for s in kernel.body
        if _ending(s, axes) and runs[s] & axes and not any(waits[u] for u in s.uses)
    ]
    ended = [s for s in ready if isinstance(s, Reduce)]
    late = [s for s in kernel.body if isinstance(s, Store) and s not in ready]
    spaces = _Spaces(kernel, values, shares, count)
    partials = {r.name: spaces.partial(r) for r in ended}
    first = _reaching(kernel, ready, kernel.body, f"{kernel.name}_part")
    first = replace(first, buffers=(*first.buffers, *spaces.buffers("out", spaces.parts)))
    combined = spaces.combine(ended, partials)
    soon = [s for s in late if not runs[s] & axes]
    after = [s for s in late if runs[s] & axes]
    names = {r.name for r in ended}
    body = (*combined, *(s for s in kernel.body if _name(s) not in names))
    kept = _kept(after, kernel, names) if after else []
    keep, read = spaces.keep([r for r in ended if r.name in kept])
    with_space = replace(
        kernel,
        axes=(*kernel.axes, Axis(spaces.axis, shares)),
        buffers=(*kernel.buffers, *spaces.buffers("in", spaces.parts)),
    )
    second = _reaching(
        replace(with_space, buffers=(*with_space.buffers, *spaces.buffers("out", spaces.results))),
        [*soon, *keep],
        (*body, *keep),
        f"{kernel.name}_combine",
    )
    rest = [second] if soon or keep else []
    if after:
        final = (*read, *(s for s in kernel.body if _name(s) not in names))
        buffers = (*kernel.buffers, *spaces.buffers("in", spaces.results))
        rest.append(
            _reaching(replace(kernel, buffers=buffers), after, final, f"{kernel.name}_after")
        )
    return first, partials, rest, spaces.made


def _kept(after: Sequence[Stmt], kernel: Kernel, names: set[str]) -> set[str]:
    """Which of the combined reductions later stores need."""
    by_name = {s.name: s for s in kernel.body if not isinstance(s, Store)}
    found: set[str] = set()
    work: list[Stmt] = list(after)
    seen: set[Stmt] = set(after)
    while work:
        for u in work.pop().uses:
            if u in names:
                found.add(u)
            elif by_name[u] not in seen:
                seen.add(by_name[u])
                work.append(by_name[u])
    return found


def _name(stmt: Stmt) -> str | None:
    return None if isinstance(stmt, Store) else stmt.name


def _reaching(kernel: Kernel, ends: Iterable[Stmt], body: Iterable[Stmt], name: str) -> Kernel:
    """The statements that `ends` need, with the axes and buffers of those."""
    body = tuple(body)
    by_name = {s.name: s for s in body if not isinstance(s, Store)}
    found = set(ends)
    work = list(found)
    while work:
        for u in work.pop().uses:
            if by_name[u] not in found:
                found.add(by_name[u])
                work.append(by_name[u])
    kept = tuple(s for s in body if s in found)
    axes = {a for s in kept for a in own_axes(s)}
    axes |= {a for s in kept if isinstance(s, Reduce) for a in s.over}
    used = {s.buffer for s in kept if isinstance(s, (Load, Take, Store))}
    used |= {s.seed for s in kept if isinstance(s, Uniform)}
    return Kernel(
        name,
        tuple(a for a in kernel.axes if a.name in axes),
        tuple(b for b in kernel.buffers if b.name in used),
        kernel.symbols,
        kept,
    )


class _Spaces:
    """Workspace for the parts and the results of reductions that programs share."""

    def __init__(
        self, kernel: Kernel, values: Mapping[str, frozenset[str]], shares: int, count: int
    ) -> None:
        self.kernel, self.values, self.shares, self.count = kernel, values, shares, count
        self.axis = f"p{count}"
        self.makers = {s.name: s for s in kernel.body if not isinstance(s, Store)}
        self.made: list[Workspace] = []
        self.parts: list[Workspace] = []
        self.results: list[Workspace] = []

    def buffers(self, role: str, spaces: list[Workspace]) -> list[Buffer]:
        return [Buffer(w.name, w.dtype, role) for w in spaces]

    def _index(self, r: Reduce) -> tuple[Affine, Dim]:
        """Row-major numbering of what a reduction keeps, and how many that are."""
        axes = [a for a in self.kernel.axes if a.name in self.values[r.name]]
        axes.sort(key=lambda a: a.name)
        extents = [a.extent for a in axes]
        terms = [(a.name, product(extents[k + 1 :])) for k, a in enumerate(axes)]
        return affine(terms), product(extents)

    def _space(self, dtype: DType, elements: Dim, into: list[Workspace]) -> str:
        space = Workspace(f"w{self.count + len(self.made)}", dtype, elements)
        self.made.append(space)
        into.append(space)
        return space.name

    def partial(self, r: Reduce) -> Partial:
        index, size = self._index(r)
        total = product((size, self.shares))
        buffer = self._space(r.dtype, total, self.parts)
        best = None
        if r.position is not None:
            best = self._space(self.makers[r.arg].dtype, total, self.parts)
        return Partial(buffer, index, size, best)

    def combine(self, reductions: list[Reduce], partials: dict[str, Partial]) -> list[Stmt]:
        """The same reductions over the parts."""
        body: list[Stmt] = []
        for r in reductions:
            p = partials[r.name]
            at = p.index + affine([(self.axis, p.step)])
            over, part = (self.axis,), f"{r.name}_{p.buffer}"
            if p.best is None:
                body.append(Load(part, p.buffer, at, r.dtype))
                body.append(replace(r, arg=part, over=over))
                continue
            dtype = self.makers[r.arg].dtype
            body.append(Load(part, p.best, at, dtype))
            place = affine([(self.axis, 1)])
            body.append(replace(r, name=f"{part}_at", arg=part, over=over, position=place))
            at_best = f"{part}_at"
            body.append(
                Take(r.name, p.buffer, p.index, at_best, p.step, self.shares, False, r.dtype)
            )
        return body

    def keep(self, reductions: list[Reduce]) -> tuple[list[Stmt], list[Stmt]]:
        """Stores of combined reductions, and the loads that bring them back."""
        stores: list[Stmt] = []
        loads: list[Stmt] = []
        for r in reductions:
            index, size = self._index(r)
            name = self._space(r.dtype, size, self.results)
            stores.append(Store(name, index, r.name, r.dtype))
            loads.append(Load(r.name, name, index, r.dtype))
        return stores, loads
