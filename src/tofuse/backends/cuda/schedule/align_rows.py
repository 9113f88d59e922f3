"""Rows that begin at unaligned addresses: where to divide them, so that accesses are wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tofuse.cost.thresholds import MIN_ALIGNED_ROW, UNKNOWN_SIZE, WIDEST_THREAD_ACCESS_BYTES
from tofuse.ir.affine import AffineExpr, make_affine
from tofuse.ir.dims import Dim, known_multiple, product, size_hint
from tofuse.ir.kernel import Kernel, Load, Reduce, Store, Uniform, iteration_axes
from tofuse.ir.tile import RowAlignment, Tile, TileLoop, Tiling


def align_rows(kernel: Kernel, tiling: Tiling, loops: Sequence[TileLoop]) -> RowAlignment | None:
    """Return how the rows of a launch are divided, or None if that gains nothing."""
    tile = tiling.tiles[-1] if tiling.tiles else None
    if tile is None or tile.role == "grid":
        return None
    found = row_start(kernel, tile.axes)
    if found is None or not _is_known_where_used(kernel, tile, found[0], tiling, loops):
        return None
    return RowAlignment(tile, *found)


def row_start(kernel: Kernel, axes: Sequence[str]) -> tuple[AffineExpr, int] | None:
    """Return the index at which rows along `axes` begin, and the elements that must divide it.

    They serve the most bytes. Return None if accesses are aligned, or if elements of different rows
    meet: in sums of columns, or in results that all rows share.
    """
    extent = product(kernel.extent(a) for a in axes)
    if not isinstance(extent, int) or extent < MIN_ALIGNED_ROW:
        return None
    accesses = _contiguous_accesses(kernel, axes)
    whole = [a for a in accesses if extent % a.elements == 0]  # others need masks inside vectors
    best, most = None, sum(a.nbytes for a in whole if a.may_be_aligned(a.start))
    for candidate in accesses:
        served = [a for a in accesses if a.is_aligned(a.start + candidate.start * -1)]
        nbytes = sum(a.nbytes for a in served)
        if nbytes > most:
            best, most = (candidate.start, max(a.elements for a in served)), nbytes
    if best is None or not _rows_are_separate(kernel, frozenset(axes), frozenset(best[0].axes)):
        return None
    return best


@dataclass(frozen=True)
class _Access:
    """An access that is contiguous along rows.

    `start` is the index of a row's first element, `elements` are those of the widest access.
    """

    start: AffineExpr
    elements: int
    nbytes: int

    def is_aligned(self, index: AffineExpr) -> bool:
        """Return whether an index is a multiple of `elements`, for all sizes."""
        return all(known_multiple(n, self.elements) for n in _factors(index))

    def may_be_aligned(self, index: AffineExpr) -> bool:
        """Return the same; symbolic sizes are taken for multiples, which there is code for."""
        return all(n % self.elements == 0 for n in _factors(index) if isinstance(n, int))


def _factors(index: AffineExpr) -> list[Dim]:
    return [index.const, *(c for _, c in index.terms)]


def _contiguous_accesses(kernel: Kernel, axes: Sequence[str]) -> list[_Access]:
    itemsizes = {b.name: b.dtype.itemsize for b in kernel.buffers if b.role != "host"}
    steps: dict[str, Dim] = {}
    step: Dim = 1
    for axis in reversed(axes):
        steps[axis] = step
        step = product((step, kernel.extent(axis)))
    found = []
    for s in kernel.body:
        if not isinstance(s, Load | Store) or s.buffer not in itemsizes:
            continue
        is_guarded = isinstance(s, Load) and s.guard is not None
        if not is_guarded and all(s.index.coefficient(a) == n for a, n in steps.items()):
            rest = [(a, c) for a, c in s.index.terms if a not in steps]
            points = product(kernel.extent(a) for a in s.index.axes)
            nbytes = itemsizes[s.buffer] * size_hint(points, UNKNOWN_SIZE)
            elements = max(1, WIDEST_THREAD_ACCESS_BYTES // itemsizes[s.buffer])
            found.append(_Access(make_affine(rest, s.index.const), elements, nbytes))
    return found


def _rows_are_separate(kernel: Kernel, along: frozenset[str], across: frozenset[str]) -> bool:
    """Return whether each value along a row belongs to it alone.

    `across` are the axes that the start of a row depends on.
    """
    _, stmt_axes = iteration_axes(kernel)
    for s in kernel.body:
        if stmt_axes[s].isdisjoint(along):
            continue
        if isinstance(s, Uniform):  # drawn in whole groups, which begin at multiples of 64
            return False
        if isinstance(s, Store) and not across <= stmt_axes[s]:
            return False
        if isinstance(s, Reduce) and along.isdisjoint(s.over) and not across.isdisjoint(s.over):
            return False
    return True


def _is_known_where_used(
    kernel: Kernel, tile: Tile, start: AffineExpr, tiling: Tiling, loops: Sequence[TileLoop]
) -> bool:
    """Return whether no statement along rows is outside of the loop that the rows' start is in."""
    looped = tiling.loop_tile
    if looped is None or looped is tile or set(looped.axes).isdisjoint(start.axes):
        return True
    _, stmt_axes = iteration_axes(kernel)
    return all(stmt_axes[s].isdisjoint(tile.axes) for p in loops for s in p.prologue)
