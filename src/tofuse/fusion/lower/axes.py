"""Atomic axes: split and identify dimensions until every view is a regrouping of whole axes."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.ir.dims import Dim, exact_div, product

Atom = int
Snapshot = tuple[list[int], list[Dim], dict[int, tuple[int, int]], set[int]]


class Misaligned(Exception):
    """The dimensions cannot be brought onto common axes; the message is the verdict's reason."""


class Atoms:
    """A union-find of axes in which an axis may also be split into smaller ones, outer first."""

    def __init__(self) -> None:
        self._parent: list[Atom] = []
        self._extent: list[Dim] = []
        self._parts: dict[Atom, tuple[Atom, Atom]] = {}
        self._pinned: set[Atom] = set()

    def fresh(self, extent: Dim) -> list[Atom]:
        """A new dimension: one atom, or none where its extent is 1."""
        if extent == 1:
            return []
        self._parent.append(len(self._parent))
        self._extent.append(extent)
        return [len(self._parent) - 1]

    def snapshot(self) -> Snapshot:
        """The state to go back to with `restore`."""
        return list(self._parent), list(self._extent), dict(self._parts), set(self._pinned)

    def restore(self, state: Snapshot) -> None:
        self._parent, self._extent, self._parts, self._pinned = state

    def extent(self, atom: Atom) -> Dim:
        return self._extent[self._find(atom)]

    def leaves(self, dim: Sequence[Atom]) -> list[Atom]:
        """The atoms a dimension consists of by now, outermost first."""
        found: list[Atom] = []
        for atom in map(self._find, dim):
            if atom in self._parts:
                found += self.leaves(self._parts[atom])
            else:
                found.append(atom)
        return found

    def pin(self, dim: Sequence[Atom]) -> None:
        """Demand that a dimension stay one axis, because it is read at an offset."""
        leaves = self.leaves(dim)
        if len(leaves) > 1:
            raise Misaligned("a slice of merged dimensions")
        self._pinned.update(leaves)

    def unify(self, a: Sequence[Atom], b: Sequence[Atom]) -> None:
        """Make two row-major groups of axes the same axes."""
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
                raise Misaligned("an axis without elements has no parts")  # or any number of them
            elif (q := exact_div(ex, ey)) is not None:
                hi, lo = self._split(x, q, ey)
                self._union(lo, y)
                left.append(hi)
            elif (q := exact_div(ey, ex)) is not None:
                hi, lo = self._split(y, q, ex)
                self._union(lo, x)
                right.append(hi)
            else:
                raise Misaligned(f"extents {ex} and {ey} do not divide each other")
        if left or right:
            raise Misaligned("sizes differ")

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
            raise Misaligned("a reshape of a sliced dimension")
        hi, lo = self.fresh(outer)[0], self.fresh(inner)[0]
        self._parts[atom] = (hi, lo)
        return hi, lo


def radix(atoms: Atoms, leaves: Sequence[Atom]) -> list[tuple[Atom, Dim]]:
    """The row-major weight of each atom in a dimension made of them."""
    return [(a, product(atoms.extent(x) for x in leaves[k + 1 :])) for k, a in enumerate(leaves)]
