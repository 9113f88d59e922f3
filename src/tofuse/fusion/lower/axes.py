"""Atomic axes: split and unify dimensions until every view regroups whole axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tofuse.ir.dims import Dim, exact_div, product
from tofuse.ir.rules import RejectedKernel, Rule

Atom = int


class Window(NamedTuple):
    """An axis that is the part of another one that begins at the index `start`."""

    part: Atom
    whole: Atom
    start: Dim


Snapshot = tuple[list[int], list[Dim], dict[int, tuple[int, int]], set[int], list[Window]]


class LoweringError(RejectedKernel):
    """A region cannot become one kernel."""


class Atoms:
    """A union-find of axes that may also be split into an outer and an inner axis."""

    def __init__(self) -> None:
        self._parent: list[Atom] = []
        self._extent: list[Dim] = []
        self._split_atoms: dict[Atom, tuple[Atom, Atom]] = {}
        self._pinned: set[Atom] = set()
        self._windows: list[Window] = []

    def fresh(self, extent: Dim) -> list[Atom]:
        """Return a new dimension: one atom, or none if its extent is 1."""
        if extent == 1:
            return []
        self._parent.append(len(self._parent))
        self._extent.append(extent)
        return [len(self._parent) - 1]

    def snapshot(self) -> Snapshot:
        """Return the state that `restore` goes back to."""
        tables = list(self._parent), list(self._extent), dict(self._split_atoms)
        return *tables, set(self._pinned), list(self._windows)

    def restore(self, state: Snapshot) -> None:
        self._parent, self._extent, self._split_atoms, self._pinned, self._windows = state

    def extent(self, atom: Atom) -> Dim:
        return self._extent[self._find(atom)]

    def leaves(self, dim: Sequence[Atom]) -> list[Atom]:
        """Return the atoms that a dimension consists of at present, outermost first."""
        whole = [self._find(atom) for atom in dim]
        if not self._split_atoms:
            return whole
        found: list[Atom] = []
        for atom in whole:
            if atom in self._split_atoms:
                found += self.leaves(self._split_atoms[atom])
            else:
                found.append(atom)
        return found

    def pin(self, dim: Sequence[Atom]) -> None:
        """Keep a dimension one axis from now on, because it is read with a step."""
        self._pinned.update(self._single(dim))

    def shift(self, part: Sequence[Atom], whole: Sequence[Atom], start: Dim) -> None:
        """Make a dimension a part of another one, at an offset.

        If one of them is split from now on, so is the other one: into the same inner axis, and
        outer axes at the offset divided by the inner extent.
        """
        parts, wholes = self._single(part), self._single(whole)
        if parts and wholes:
            self._windows.append(Window(parts[0], wholes[0], start))
        else:
            self._pinned.update(parts + wholes)

    def shifted(
        self, part: Sequence[Atom], whole: Sequence[Atom], start: Dim
    ) -> tuple[list[Atom], list[Atom], Dim]:
        """Return the axes of two dimensions that are not common, and the offset along these.

        One is the part of the other one that begins at the index `start`.
        """
        parts, wholes, common = self.leaves(part), self.leaves(whole), []
        while parts and wholes and parts[-1] == wholes[-1]:
            common.append(parts.pop())
            wholes.pop()
        offset = exact_div(start, product(self.extent(a) for a in common))
        assert offset is not None
        return parts, wholes, offset

    def _single(self, dim: Sequence[Atom]) -> list[Atom]:
        """Return the axis of a dimension, if its extent is not 1."""
        leaves = self.leaves(dim)
        if len(leaves) > 1:
            raise LoweringError(Rule.SLICE_OF_MERGED())
        return leaves

    def unify(self, a: Sequence[Atom], b: Sequence[Atom]) -> None:
        """Make two row-major sequences of axes the same axes."""
        left, right = self.leaves(a), self.leaves(b)
        while left and right:
            x, y = left.pop(), right.pop()
            # an earlier step may have split or merged them
            left += self.leaves([x])
            right += self.leaves([y])
            x, y = left.pop(), right.pop()
            if x == y:
                continue
            ex, ey = self._extent[x], self._extent[y]
            if ex == ey:
                self._union(x, y)
            elif 0 in (ex, ey):
                raise LoweringError(Rule.EMPTY_AXIS())
            elif (q := exact_div(ex, ey)) is not None:
                left += self._split(x, q, ey)
                right.append(y)
            elif (q := exact_div(ey, ex)) is not None:
                right += self._split(y, q, ex)
                left.append(x)
            else:
                raise LoweringError(Rule.INDIVISIBLE_EXTENTS(str(ex), str(ey)))
        if left or right:
            raise LoweringError(Rule.DIFFERENT_SIZES())

    def _find(self, atom: Atom) -> Atom:
        parent = self._parent
        while (above := parent[atom]) != atom:
            parent[atom] = atom = parent[above]
        return atom

    def _union(self, x: Atom, y: Atom) -> None:
        keep, drop = (x, y) if x < y else (y, x)
        self._parent[drop] = keep
        if drop in self._pinned:
            self._pinned.add(keep)

    def _split(self, atom: Atom, outer: Dim, inner: Dim) -> tuple[Atom, Atom]:
        if atom in self._pinned:
            raise LoweringError(Rule.RESHAPE_OF_SLICE())
        hi, lo = self.fresh(outer)[0], self.fresh(inner)[0]
        self._split_atoms[atom] = (hi, lo)
        for window in list(self._windows):
            ends = self._find(window.part), self._find(window.whole)
            if window in self._windows and atom in ends:
                self._windows.remove(window)
                self._split_window(window, ends[1] if ends[0] == atom else ends[0], lo)
        return hi, lo

    def _split_window(self, window: Window, other: Atom, lo: Atom) -> None:
        """Split the other axis of a window by an inner axis `lo` of the one that was split."""
        inner = self._extent[self._find(lo)]
        start, outer = exact_div(window.start, inner), exact_div(self._extent[other], inner)
        if start is None or outer is None:
            raise LoweringError(Rule.RESHAPE_OF_SLICE())
        if outer == 1:
            self.unify([other], [lo])
            return
        _, other_lo = self._split_atoms.get(other) or self._split(other, outer, inner)
        if self.extent(other_lo) != inner:
            raise LoweringError(Rule.RESHAPE_OF_SLICE())
        self.unify([other_lo], [lo])
        outer_part, outer_whole = (
            self._split_atoms[self._find(a)][0] for a in (window.part, window.whole)
        )
        self._windows.append(Window(outer_part, outer_whole, start))


def row_major_strides(atoms: Atoms, leaves: Sequence[Atom]) -> list[tuple[Atom, Dim]]:
    """Return the row-major stride of each atom in a dimension made of them."""
    return [(a, product(atoms.extent(x) for x in leaves[k + 1 :])) for k, a in enumerate(leaves)]
