"""Register transpose: accesses across the vector axis are transposed tile by tile in registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tofuse.backends.cpu.llvm.function_emitter import (
    FunctionEmitter,
    TransposedTile,
    prefetch,
)
from tofuse.backends.cpu.llvm.ir_text import REGISTER_TYPES, vector_type
from tofuse.backends.cpu.llvm.shuffles import transpose
from tofuse.cost.thresholds import PREFETCHED_MATRIX
from tofuse.ir.affine import AffineExpr, make_affine
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import Load, Stmt, Store
from tofuse.ir.nest import For, Nest, StmtNode
from tofuse.ir.types import DType


def find_transposed_tile(
    nest: Nest, node: For, buffer_dtypes: dict[str, DType]
) -> TransposedTile | None:
    """Return the tile that a loop runs over if it has accesses to transpose, else None."""
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
    stmts = [n.stmt for n in inner[0].body if isinstance(n, StmtNode)]
    accesses = tuple(
        s
        for s in stmts
        if (isinstance(s, Load) and s.guard is None)
        or (isinstance(s, Store) and isinstance(s.value, str))
        if _is_transposed(s.index, rows, columns)
        if buffer_dtypes[s.buffer] is not DType.BOOL
    )
    plain_loads = tuple(
        s for s in stmts if isinstance(s, Load) and s.index.coefficient(columns) == 1
    )
    return TransposedTile(rows, columns, width, accesses, plain_loads) if accesses else None


def _is_transposed(index: AffineExpr, rows: str, columns: str) -> bool:
    return index.coefficient(rows) == 1 and index.coefficient(columns) not in (0, 1)


def is_full_tile(emitter: FunctionEmitter, tile: TransposedTile) -> str:
    """Return whether the tile is inside both axes, as an i1."""
    f, kernel = emitter.f, emitter.nest.kernel
    tests = []
    for axis in (tile.rows, tile.columns):
        extent = kernel.extent(axis)
        if not isinstance(extent, int) or extent % tile.width:
            end = f.let(f"add i64 {emitter.tile_starts[axis]}, {tile.width}")
            tests.append(f.let(f"icmp sle i64 {end}, {emitter.size(extent)}"))
    all_inside = tests[1:] and f.let(f"and i1 {tests[0]}, {tests[1]}")
    return all_inside or (tests[0] if tests else "true")


@contextmanager
def transpose_tile(
    emitter: FunctionEmitter, tile: TransposedTile, buffer_dtypes: dict[str, DType]
) -> Iterator[None]:
    """Transpose the tile's loads into stack arrays before the body, and its stores after it."""
    _prefetch_next_tile(emitter, tile, buffer_dtypes)
    slots: dict[Stmt, str] = {}
    for s in tile.accesses:
        ty = REGISTER_TYPES[buffer_dtypes[s.buffer].opmath]
        slots[s] = emitter.f.alloca(f"[{tile.width * tile.width} x {ty}]")
        if isinstance(s, Load):
            _move_tile(emitter, tile, s, slots[s], buffer_dtypes[s.buffer])
    emitter.tile_arrays, emitter.transposed_tile = slots, tile
    yield
    emitter.tile_arrays, emitter.transposed_tile = {}, None
    for s in tile.accesses:
        if isinstance(s, Store):
            _move_tile(emitter, tile, s, slots[s], buffer_dtypes[s.buffer])


def tile_element_pointer(emitter: FunctionEmitter, s: Load | Store, dtype: DType) -> str:
    """Return the address of the current vector in the stack array of an access."""
    tile = emitter.transposed_tile
    assert tile is not None
    index = make_affine([(tile.rows, tile.width), (tile.columns, 1)])
    offset = emitter.affine(index, tuple(a for a in index.axes if a in emitter.tile_starts))
    return emitter.element_pointer(emitter.tile_arrays[s], dtype, offset)


def _prefetch_next_tile(
    emitter: FunctionEmitter, tile: TransposedTile, buffer_dtypes: dict[str, DType]
) -> None:
    """Prefetch the loads of the next tile along the rows.

    The hardware prefetcher follows the lines of one transposed load, but not those of several, nor
    partial rows.
    """
    extents = [size_hint(emitter.nest.kernel.extent(a)) for a in (tile.rows, tile.columns)]
    if extents[0] * extents[1] < PREFETCHED_MATRIX:
        return
    loads = [s for s in tile.accesses if isinstance(s, Load)]
    next_loads = [(s, tile.columns) for s in loads if len(loads) > 1]
    for s, along in next_loads + [(s, tile.rows) for s in tile.plain_loads]:
        step = emitter.size(s.index.coefficient(along))
        start = emitter.affine(
            s.index + make_affine([], s.index.coefficient(tile.rows) * tile.width)
        )
        with emitter.f.loop("0", str(tile.width), "1") as k:
            index = emitter.f.let(f"add i64 {start}, {emitter.f.let(f'mul i64 {k}, {step}')}")
            prefetch(emitter, s.buffer, buffer_dtypes[s.buffer], index, tile.width)


def _move_tile(
    emitter: FunctionEmitter, tile: TransposedTile, s: Load | Store, array: str, dtype: DType
) -> None:
    """Move a tile between memory and its stack array, in blocks of `lanes` by `lanes`."""
    f, lanes, array_dtype = emitter.f, emitter.nest.schedule.vector, dtype.opmath
    step = emitter.size(s.index.coefficient(tile.columns))
    start = emitter.affine(s.index)  # the indices of both axes are those of the corner
    blocks = [(r, c) for r in range(0, tile.width, lanes) for c in range(0, tile.width, lanes)]
    for row, column in blocks:
        array_pointers = []
        for k in range(lanes):
            at = str((row + k) * tile.width + column)
            array_pointers.append(emitter.element_pointer(array, array_dtype, at))
        buffer_pointers = []
        for k in range(lanes):
            at = f.let(f"mul i64 {step}, {column + k}")
            at = f.let(f"add i64 {start}, {f.let(f'add i64 {at}, {row}')}")
            buffer_pointers.append(emitter.element_pointer(emitter.pointers[s.buffer], dtype, at))
        source, target = (buffer_pointers, dtype), (array_pointers, array_dtype)
        if isinstance(s, Store):
            source, target = target, source
        vectors = [emitter.load(p, source[1], lanes, None) for p in source[0]]
        vectors = transpose(f, vectors, vector_type(REGISTER_TYPES[array_dtype], lanes))
        for p, x in zip(target[0], vectors, strict=True):
            emitter.store(p, target[1], x, lanes, None)
