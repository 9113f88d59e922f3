"""Kernel -> Tiling: groups of axes that are reduced alike, and how a GPU program covers them."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.dims import fixed, hint, product
from tofuse.ir.kernel import Affine, Compute, Kernel, Load, Reduce, Store, Take, iteration_axes
from tofuse.ir.tile import GpuTarget, Tile, Tiling
from tofuse.schedule.loop_orders import Unschedulable

FLAT = 1024  # elements of a program without reductions: 8 a thread, two 16-byte accesses of floats
SQUARE = 64  # the side of a tile that is read along one side and written along the other
ROWS = 2048  # elements of a program that reduces rows
WHOLE = 16384  # elements of a row held in registers; see docs/measurements.md
COLUMNS = 64  # contiguous columns reduced side by side
LEAST_COLUMNS = 8  # the same at least: 32 bytes, which memory moves at once
LONGEST = 32768  # the same of 4-byte elements; shorter ones come again from the L2 cache
LOOPED = 8192  # elements of a block of a row that is looped over
UNKNOWN = 4096  # what a size that is not known counts as
HELD = 1024  # the same of rows that are held while columns are reduced
SHARES = 2  # programs a multiprocessor, of a reduction that many share
SHARES_HELD = 4  # the same where rows are held; see docs/measurements.md
WORTH_SHARING = 1 << 16  # elements for each program below which one program does it alone


def choose_tiling(kernel: Kernel, target: GpuTarget) -> Tiling:
    """Tiles for all axes; raises Unschedulable, whose message is a verdict's reason."""
    groups = _groups(kernel)
    reduced = [g for g in groups if g.reduced]
    if not reduced:
        return _pointwise(kernel, groups)
    moving, whole = _inner(kernel, reduced)
    free = [g for g in groups if not g.reduced]
    return _reducing(kernel, target, free, moving, whole)


@dataclass(frozen=True)
class _Group:
    """Axes of the same reductions, outermost first."""

    axes: tuple[str, ...]
    extent: int
    known: bool
    reduced: bool
    contiguous: bool


def _groups(kernel: Kernel) -> list[_Group]:
    """Groups in order of memory stride, the contiguous one last."""
    reductions = [s for s in kernel.body if isinstance(s, Reduce)]
    order, vector, across = _axis_order(kernel)
    found: dict[tuple[object, ...], list[str]] = {}
    plain = not reductions
    for axis in order:
        over: tuple[object, ...] = tuple(axis in r.over for r in reductions)
        if plain and across is not None:
            over = (axis == vector, axis == across)
        found.setdefault(over, []).append(axis)
    groups = []
    for key, axes in found.items():
        places = [r.position for r in reductions if r.position is not None]
        for p in places:
            if all(p.coefficient(a) != 0 for a in axes):
                axes = sorted(axes, key=lambda a, p=p: -hint(p.coefficient(a)))  # type: ignore[misc]
        extent = product(kernel.extent(a) for a in axes)
        size, known = fixed(extent, UNKNOWN), isinstance(extent, int)
        in_reduction = bool(reductions) and any(key)
        groups.append(_Group(tuple(axes), size, known, in_reduction, vector in axes))
    return sorted(groups, key=lambda g: (g.contiguous, across in g.axes))


def _axis_order(kernel: Kernel) -> tuple[list[str], str | None, str | None]:
    """Axes by stride, the contiguous axis, and one that is contiguous in other buffers."""
    _, runs = iteration_axes(kernel)
    weights: list[tuple[Affine, int]] = []
    for s in kernel.body:
        if isinstance(s, (Load, Store, Take)):
            points = product(kernel.extent(a) for a in runs[s])
            weights.append((s.index, fixed(points, UNKNOWN) * (1 + isinstance(s, Store))))

    def stride(axis: str) -> float:
        steps = [(abs(hint(i.coefficient(axis))), w) for i, w in weights]
        return sum(s * w for s, w in steps if s) / max(1, sum(w for s, w in steps if s))

    def score(axis: str) -> float:
        total = 0.0
        for index, weight in weights:
            step = index.coefficient(axis)
            total += weight if step == 1 else -weight if step != 0 else 0
        return total / (max((w for _, w in weights), default=1) or 1)

    order = sorted((a.name for a in kernel.axes), key=lambda a: (-stride(a), a))
    if not order:
        return [], None, None
    vector = max(order, key=lambda a: (score(a), min(64, fixed(kernel.extent(a), 64)), a))
    order = [a for a in order if a != vector] + [vector]
    for index, _ in weights:
        if index.coefficient(vector) in (0, 1):
            continue
        for axis in index.axes:
            sides = [fixed(kernel.extent(a), UNKNOWN) for a in (axis, vector)]
            if axis != vector and index.coefficient(axis) == 1 and min(sides) >= 16:
                return order, vector, axis
    return order, vector, None


def _pointwise(kernel: Kernel, groups: list[_Group]) -> Tiling:
    if len(groups) <= 1:
        size = min(FLAT, _power(groups[0].extent) if groups else 1)
        tiles = tuple(Tile(g.axes, size, "grid") for g in groups)
        return Tiling(tiles, max(1, min(4, size // 128)))
    tiles = tuple(
        Tile(g.axes, min(SQUARE, _power(g.extent)) if k >= len(groups) - 2 else 1, "grid")
        for k, g in enumerate(groups)
    )
    return Tiling(tiles, _warps(_elements(kernel, tiles)))


def _inner(kernel: Kernel, reduced: list[_Group]) -> tuple[_Group | None, list[_Group]]:
    """The group to loop over, if one must be, and those held whole."""
    if len(reduced) == 1:
        return reduced[0], []
    *others, last = reduced
    if any(not g.known for g in (*others[1:], last)) and others[0].known:
        others[0], last = last, others[0]
    # the largest that is not contiguous is looped over
    moving = max(others, key=lambda g: g.extent)
    whole = [g for g in reduced if g is not moving]
    tiles = tuple(Tile(g.axes, _power(g.extent), "whole") for g in whole)
    if not all(g.known for g in whole):
        raise Unschedulable("reductions over several axes of unknown length")
    if _elements(kernel, tiles) > WHOLE:
        raise Unschedulable(
            f"reductions over different axes, with more than {WHOLE} elements to hold in registers"
        )
    return moving, whole


def _reducing(
    kernel: Kernel,
    target: GpuTarget,
    free: list[_Group],
    moving: _Group | None,
    whole: list[_Group],
) -> Tiling:
    assert moving is not None
    row = 1
    held = tuple(Tile(g.axes, _power(g.extent), "whole") for g in whole)
    row = _elements(kernel, held)
    length = _power(moving.extent)
    lone = not whole  # one group of reduced axes
    beside = max((g.extent for g in free if g.contiguous), default=1)
    across = 1
    if lone and not moving.contiguous:
        others = product(g.extent for g in free if not g.contiguous)
        across = _columns(beside, hint(others), target)
    rows = 1
    if lone and across == 1 and moving.known:
        rows = max(1, min(ROWS // length, _power(max((g.extent for g in free), default=1))))
    width = max(across, rows)
    tiles, programs = [], 1
    for k, g in enumerate(free):
        last = k == len(free) - 1
        block = width if (g.contiguous if across > 1 else last) else 1
        tiles.append(Tile(g.axes, block, "grid"))
        programs *= -(-g.extent // block)
    few = 2 * programs <= target.multiprocessors
    at_once = LOOPED // width if lone else HELD // row
    block = max(1, min(length, at_once))
    blocks = -(-moving.extent // block)
    role, shares = "loop", 1
    if few and moving.extent * row * width >= WORTH_SHARING and blocks > 1:
        each = SHARES if lone else SHARES_HELD
        role, shares = "share", max(1, min(each * target.multiprocessors // programs, blocks))
    elif lone and moving.known and length * width <= _most_held(kernel, moving):
        role, block = "whole", length
    new = Tile(moving.axes, block, role)
    every = _ordered(kernel, (*tiles, new, *held))
    if sum(t.block > 1 for t in every) > 4:
        raise Unschedulable("more than four groups of axes")
    return Tiling(every, _warps(_elements(kernel, every)), shares)


def _most_held(kernel: Kernel, row: _Group) -> int:
    """The longest row to hold in registers."""
    _, runs = iteration_axes(kernel)
    along = [s for s in kernel.body if not runs[s].isdisjoint(row.axes)]
    memory = {b.name: b.dtype.itemsize for b in kernel.buffers}
    loads = {memory[s.buffer] for s in along if isinstance(s, Load)}
    computed = {s.dtype.itemsize for s in along if isinstance(s, Compute)}
    plain = min(loads, default=0) >= 4 and max(computed, default=4) <= 4
    return max(WHOLE, LONGEST) if plain else WHOLE


def _columns(extent: int, others: int, target: GpuTarget) -> int:
    """How many contiguous columns a program reduces: fewer where programs would be few."""
    width = min(COLUMNS, _power(extent))
    while width > LEAST_COLUMNS and others * -(-extent // width) < target.multiprocessors:
        width //= 2
    return width


def _ordered(kernel: Kernel, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """The tile with the contiguous axis last."""
    _, vector, _ = _axis_order(kernel)
    return tuple(sorted(tiles, key=lambda t: vector in t.axes))


def _elements(kernel: Kernel, tiles: tuple[Tile, ...]) -> int:
    """The most elements that any value has in a program."""
    _, runs = iteration_axes(kernel)
    most = 1
    for axes in runs.values():
        size = 1
        for t in tiles:
            if any(a in axes for a in t.axes):
                size *= t.block
        most = max(most, size)
    return most


def _warps(elements: int) -> int:
    """Eight elements a thread in four warps, more in each thread beyond, up to 32."""
    return max(1, min(4, elements // 256), min(16, elements // 1024))


def _power(n: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, n - 1).bit_length()
