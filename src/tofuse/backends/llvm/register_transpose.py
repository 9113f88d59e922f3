"""Tiles turned in registers: reads and writes across the vector axis take whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tofuse.backends.llvm.ir_text import REGISTER, vector
from tofuse.backends.llvm.registers import Frame, Tile, fetch, register
from tofuse.backends.llvm.shuffles import transpose
from tofuse.ir.dims import hint
from tofuse.ir.kernel import Affine, Load, Stmt, Store, affine
from tofuse.ir.nest import Do, For, Nest
from tofuse.ir.types import DType

LARGE = 1 << 18  # elements of a matrix that is not in the L2 cache anyway


def find_tile(nest: Nest, node: For, memory: dict[str, DType]) -> Tile | None:
    """The tile that a loop runs over, if it is one and something in it has to be turned."""
    schedule = nest.schedule
    strips = {lp.axis: lp.strip for lp in schedule.loops if lp.strip}
    inner = [n for n in node.body if isinstance(n, For)]
    if node.loop.strip or len(inner) != 1 or inner[0].loop is not schedule.loops[-1]:
        return None
    rows, columns = node.loop.axis, inner[0].loop.axis
    width = strips.get(columns, 0)
    if not width or schedule.unroll != 1 or schedule.vector < 4 or width % schedule.vector:
        return None
    if strips.get(rows) != width:
        return None
    found = [n.stmt for n in inner[0].body if isinstance(n, Do)]
    accesses = tuple(
        s
        for s in found
        if (isinstance(s, Load) and s.guard is None)
        or (isinstance(s, Store) and isinstance(s.value, str))
        if _is_turned(s.index, rows, columns)
        if memory[s.buffer] is not DType.BOOL
    )
    plain = tuple(s for s in found if isinstance(s, Load) and s.index.coefficient(columns) == 1)
    return Tile(rows, columns, width, accesses, plain) if accesses else None


def _is_turned(index: Affine, rows: str, columns: str) -> bool:
    return index.coefficient(rows) == 1 and index.coefficient(columns) not in (0, 1)


def is_whole(frame: Frame, tile: Tile) -> str:
    """Whether the tile lies inside both axes, as an i1."""
    f, kernel = frame.f, frame.nest.kernel
    tests = []
    for axis in (tile.rows, tile.columns):
        extent = kernel.extent(axis)
        if not isinstance(extent, int) or extent % tile.width:
            end = f.let(f"add i64 {frame.tiles[axis]}, {tile.width}")
            tests.append(f.let(f"icmp sle i64 {end}, {frame.size(extent)}"))
    both = tests[1:] and f.let(f"and i1 {tests[0]}, {tests[1]}")
    return both or (tests[0] if tests else "true")


@contextmanager
def turned(frame: Frame, tile: Tile, memory: dict[str, DType]) -> Iterator[None]:
    """Read the tile's arrays before what is written inside, and write the others after it."""
    _fetch_next(frame, tile, memory)
    slots: dict[Stmt, str] = {}
    for s in tile.accesses:
        kind = REGISTER[register(memory[s.buffer])]
        slots[s] = frame.f.alloca(f"[{tile.width * tile.width} x {kind}]")
        if isinstance(s, Load):
            _turn(frame, tile, s, slots[s], memory[s.buffer])
    frame.turned, frame.tile = slots, tile
    yield
    frame.turned, frame.tile = {}, None
    for s in tile.accesses:
        if isinstance(s, Store):
            _turn(frame, tile, s, slots[s], memory[s.buffer])


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
