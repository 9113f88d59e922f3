"""Atomic axes: split and unify dimensions until every view regroups whole axes."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.ir.dims import Dim, exact_div, product
from tofuse.ir.rules import RejectedKernel, Rule

Atom = int
Snapshot = tuple[list[int], list[Dim], dict[int, tuple[int, int]], set[int]]


class LoweringError(RejectedKernel):
    """A region cannot become one kernel."""


class Atoms:
    """A union-find of axes that may also be split into an outer and an inner axis."""

    def __init__(self) -> None:
        self._parent: list[Atom] = []
        self._extent: list[Dim] = []
        self._split_atoms: dict[Atom, tuple[Atom, Atom]] = {}
        self._pinned: set[Atom] = set()

    def fresh(self, extent: Dim) -> list[Atom]:
        """Return a new dimension: one atom, or none if its extent is 1."""
        if extent == 1:
            return []
        self._parent.append(len(self._parent))
        self._extent.append(extent)
        return [len(self._parent) - 1]

    def snapshot(self) -> Snapshot:
        """Return the state that `restore` goes back to."""
        return list(self._parent), list(self._extent), dict(self._split_atoms), set(self._pinned)

    def restore(self, state: Snapshot) -> None:
        self._parent, self._extent, self._split_atoms, self._pinned = state

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
        """Keep a dimension one axis from now on, because it is read at an offset."""
        leaves = self.leaves(dim)
        if len(leaves) > 1:
            raise LoweringError(Rule.SLICE_OF_MERGED())
        self._pinned.update(leaves)

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
                hi, lo = self._split(x, q, ey)
                self._union(lo, y)
                left.append(hi)
            elif (q := exact_div(ey, ex)) is not None:
                hi, lo = self._split(y, q, ex)
                self._union(lo, x)
                right.append(hi)
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
        return hi, lo


def row_major_strides(atoms: Atoms, leaves: Sequence[Atom]) -> list[tuple[Atom, Dim]]:
    """Return the row-major stride of each atom in a dimension made of them."""
    return [(a, product(atoms.extent(x) for x in leaves[k + 1 :])) for k, a in enumerate(leaves)]
