"""Tiles turned in registers: reads and writes across the vector axis take whole lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tofuse.backends.llvm.registers import Frame, Tile, fetch, register
from tofuse.backends.llvm.text import REGISTER, Function, vector
from tofuse.ir.dims import hint
from tofuse.ir.interleave import interleaved
from tofuse.ir.kernel import Affine, Kernel, Load, Stmt, Store, affine
from tofuse.ir.loops import Do, For, Nest
from tofuse.ir.types import DType

LARGE = 1 << 18  # elements of a matrix that is not in the L2 cache anyway


def find_tile(nest: Nest, node: For, memory: dict[str, DType]) -> Tile | None:
    """The tile that a loop runs over, if it is one and something in it has to be turned."""
    schedule, kernel = nest.schedule, nest.kernel
    strips = {lp.axis: lp.strip for lp in schedule.loops if lp.strip}
    inner = [n for n in node.body if isinstance(n, For)]
    if node.loop.strip or len(inner) != 1 or inner[0].loop is not schedule.loops[-1]:
        return None
    rows, columns = node.loop.axis, inner[0].loop.axis
    width = strips.get(columns, 0)
    height = strips.get(rows, kernel.extent(rows))
    if not width or schedule.unroll != 1 or schedule.vector < 4 or width % schedule.vector:
        return None
    if not isinstance(height, int) or (rows in strips and height != width):
        return None
    found = [n.stmt for n in inner[0].body if isinstance(n, Do)]
    accesses = tuple(
        s
        for s in found
        if (isinstance(s, Load) and s.guard is None)
        or (isinstance(s, Store) and isinstance(s.value, str))
        if _is_turned(kernel, s.index, rows, columns, rows in strips)
        if memory[s.buffer] is not DType.BOOL
    )
    plain = tuple(s for s in found if isinstance(s, Load) and s.index.coefficient(columns) == 1)
    return Tile(rows, columns, height, width, accesses, plain) if accesses else None


def _is_turned(kernel: Kernel, index: Affine, rows: str, columns: str, square: bool) -> bool:
    if not square:
        return interleaved(kernel, index, columns) == rows
    return index.coefficient(rows) == 1 and index.coefficient(columns) not in (0, 1)


def is_whole(frame: Frame, tile: Tile) -> str:
    """Whether the tile lies inside both axes, as an i1."""
    f, kernel = frame.f, frame.nest.kernel
    tests = []
    for axis, side in ((tile.rows, tile.height), (tile.columns, tile.width)):
        extent = kernel.extent(axis)
        if not isinstance(extent, int) or extent % side:
            end = f.let(f"add i64 {frame.tiles[axis]}, {side}")
            tests.append(f.let(f"icmp sle i64 {end}, {frame.size(extent)}"))
    both = tests[1:] and f.let(f"and i1 {tests[0]}, {tests[1]}")
    return both or (tests[0] if tests else "true")


@contextmanager
def turned(frame: Frame, tile: Tile, memory: dict[str, DType]) -> Iterator[None]:
    """Read the tile's arrays before what is written inside, and write the others after it."""
    turn = _turn
    if tile.rows not in frame.tiles:  # the tile has them all
        frame.index[tile.rows] = "0"
        turn = _interleave
    else:
        _fetch_next(frame, tile, memory)
    slots: dict[Stmt, str] = {}
    for s in tile.accesses:
        kind = REGISTER[register(memory[s.buffer])]
        slots[s] = frame.f.alloca(f"[{tile.height * tile.width} x {kind}]")
        if isinstance(s, Load):
            turn(frame, tile, s, slots[s], memory[s.buffer])
    frame.turned, frame.tile = slots, tile
    yield
    frame.turned, frame.tile = {}, None
    for s in tile.accesses:
        if isinstance(s, Store):
            turn(frame, tile, s, slots[s], memory[s.buffer])


def turned_element(frame: Frame, s: Load | Store, dtype: DType) -> str:
    """Where the current vector stands in the array of an access."""
    tile = frame.tile
    assert tile is not None
    place = affine([(tile.rows, tile.width), (tile.columns, 1)])
    at = frame.affine(place, tuple(a for a in place.axes if a in frame.tiles))
    return frame.element(frame.turned[s], dtype, at)


def _fetch_next(frame: Frame, tile: Tile, memory: dict[str, DType]) -> None:
    """Ask for what the next tile further down the rows reads.

    The processor itself follows the lines of one turned tile, not those of several, nor pieces of
    rows.
    """
    extents = [hint(frame.nest.kernel.extent(a)) for a in (tile.rows, tile.columns)]
    if extents[0] * extents[1] < LARGE:
        return
    turned = [s for s in tile.accesses if isinstance(s, Load)]
    wanted = [(s, tile.columns) for s in turned if len(turned) > 1]
    for s, along in wanted + [(s, tile.rows) for s in tile.plain]:
        step = frame.size(s.index.coefficient(along))
        start = frame.affine(s.index + affine([], s.index.coefficient(tile.rows) * tile.width))
        with frame.f.loop("0", str(tile.width), "1") as k:
            at = frame.f.let(f"add i64 {start}, {frame.f.let(f'mul i64 {k}, {step}')}")
            fetch(frame, s.buffer, memory[s.buffer], at, tile.width)


def _turn(frame: Frame, tile: Tile, s: Load | Store, slot: str, dtype: DType) -> None:
    """Move a tile between memory and its array, block by block of `lanes` by `lanes`."""
    f, lanes, kind = frame.f, frame.nest.schedule.vector, register(dtype)
    step = frame.size(s.index.coefficient(tile.columns))
    start = frame.affine(s.index)  # both axes stand at the corner
    blocks = [(r, c) for r in range(0, tile.width, lanes) for c in range(0, tile.width, lanes)]
    for row, column in blocks:
        near = [
            frame.element(slot, kind, str((row + k) * tile.width + column)) for k in range(lanes)
        ]
        far = []
        for k in range(lanes):
            at = f.let(f"mul i64 {step}, {column + k}")
            at = f.let(f"add i64 {start}, {f.let(f'add i64 {at}, {row}')}")
            far.append(frame.element(frame.pointers[s.buffer], dtype, at))
        sources, source = (far, dtype) if isinstance(s, Load) else (near, kind)
        parts = [frame.load(p, source, lanes, None) for p in sources]
        parts = transpose(f, parts, vector(REGISTER[kind], lanes))
        for p, x in zip(near if isinstance(s, Load) else far, parts, strict=True):
            frame.store(p, kind if isinstance(s, Load) else dtype, x, lanes, None)


def transpose(f: Function, parts: Sequence[str], kind: str) -> list[str]:
    """As many vectors as lanes, rows for columns: swap ever larger blocks off the diagonal."""
    turned, lanes = list(parts), len(parts)
    step = 1
    while step < lanes:
        for i in (i for i in range(lanes) if not i & step):
            pair = f"{kind} {turned[i]}, {kind} {turned[i + step]}"
            first = [k if not k & step else lanes + k - step for k in range(lanes)]
            second = [k + step if not k & step else lanes + k for k in range(lanes)]
            turned[i], turned[i + step] = (
                f.let(f"shufflevector {pair}, <{lanes} x i32> <{_lanes(m)}>")
                for m in (first, second)
            )
        step *= 2
    return turned


def _interleave(frame: Frame, tile: Tile, s: Load | Store, slot: str, dtype: DType) -> None:
    """Move a tile between its array, row by row, and memory, where its rows are interleaved."""
    f, lanes, kind = frame.f, frame.nest.schedule.vector, register(dtype)
    start, rows = frame.affine(s.index), range(tile.height)
    numbers = range(tile.height * lanes)
    for column in range(0, tile.width, lanes):
        near = [frame.element(slot, kind, str(r * tile.width + column)) for r in rows]
        far = []
        for r in rows:
            at = f.let(f"add i64 {start}, {column * tile.height + r * lanes}")
            far.append(frame.element(frame.pointers[s.buffer], dtype, at))
        if isinstance(s, Load):
            places = [n % lanes * tile.height + n // lanes for n in numbers]
            sources, source, targets, target = far, dtype, near, kind
        else:
            places = [n % tile.height * lanes + n // tile.height for n in numbers]
            sources, source, targets, target = near, kind, far, dtype
        parts = [frame.load(p, source, lanes, None) for p in sources]
        parts = _pick(f, parts, places, vector(REGISTER[kind], lanes))
        for p, x in zip(targets, parts, strict=True):
            frame.store(p, target, x, lanes, None)


def _pick(f: Function, parts: Sequence[str], places: Sequence[int], kind: str) -> list[str]:
    """Vectors of the elements at those places, counted over all parts."""
    lanes, picked = len(places) // len(parts), []
    for first in range(0, len(places), lanes):
        found = "poison"
        for number, part in enumerate(parts):
            mask = list(range(lanes))  # what is there stays there
            for lane, place in enumerate(places[first : first + lanes]):
                if place // lanes == number:
                    mask[lane] = lanes + place % lanes
            if max(mask) >= lanes:
                pair = f"{kind} {found}, {kind} {part}"
                found = f.let(f"shufflevector {pair}, <{lanes} x i32> <{_lanes(mask)}>")
        picked.append(found)
    return picked


def _lanes(mask: Sequence[int]) -> str:
    return ", ".join(f"i32 {k}" for k in mask)
