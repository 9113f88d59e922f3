"""Values of a kernel that are computed at several shifts of one index, as a stencil's are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

from tofuse.cost.thresholds import MAX_SHIFT_SHARE_OF_EXTENT
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim, size_hint
from tofuse.ir.graph import Scalar
from tofuse.ir.kernel import WRITES, Compute, InRange, Kernel, Load, Stmt
from tofuse.ir.statement import Arg

Terms = tuple[tuple[str, Dim], ...]
Offsets = Mapping[Terms, int]  # the first constant of an index with these terms
Key = tuple[Union[str, int, "Key"], ...]


@dataclass(frozen=True)
class _Shape:
    """What a value computes, wherever it is, and where it is."""

    number: int  # of its formula
    offsets: Offsets


def shifted_copies(kernel: Kernel) -> Sequence[Sequence[Compute]]:
    """Return the statements that compute one value at several shifts along the axes.

    A kernel that reads its own value at neighbouring places computes it for each of them. Values
    at places that hardly overlap, such as the two halves of a row, do not count.
    """
    return _Copies(kernel).groups()


@dataclass(eq=False)
class _Copies:
    kernel: Kernel
    shapes: dict[str, _Shape] = field(default_factory=dict)
    numbers: dict[Key, int] = field(default_factory=dict)  # of formulas

    def groups(self) -> list[list[Compute]]:
        members: dict[int, list[Compute]] = {}
        for s in self.kernel.body:
            if isinstance(s, WRITES):
                continue
            self.shapes[s.name] = self._shape(s)
            if isinstance(s, Compute) and self._inside(s) is None:
                members.setdefault(self.shapes[s.name].number, []).append(s)
        groups = []
        for same in members.values():
            first = self.shapes[same[0].name].offsets
            groups.append([s for s in same if self._overlaps(first, self.shapes[s.name].offsets)])
        return [group for group in groups if len(group) > 1]

    def _shape(self, s: Stmt) -> _Shape:
        offsets: dict[Terms, int] = {}
        match s:
            case Load():
                return self._numbered(("load", s.buffer, self._index(s.index, offsets)), offsets)
            case Compute() if (inside := self._inside(s)) is not None:
                return self.shapes[inside]
            case Compute():
                kind: Key = (s.op, s.dtype.value, s.operand_dtype.value, str(s.rounds_to))
                args = tuple(self._operand(a, offsets) for a in s.args)
                return self._numbered((kind, *args), offsets)
        return self._numbered(("other", len(self.shapes)), offsets)

    def _inside(self, s: Compute) -> str | None:
        """Return what `s` is inside of the bounds, if it is something else beyond them.

        Of a concat, this is one of the parts; those of a periodic field are the same further away.
        """
        if s.op != "where" or not isinstance(self.kernel.definitions.get(str(s.args[0])), InRange):
            return None
        return next((a for a in s.args[1:] if isinstance(a, str)), None)

    def _numbered(self, key: Key, offsets: Offsets) -> _Shape:
        return _Shape(self.numbers.setdefault(key, len(self.numbers)), offsets)

    def _index(self, index: AffineExpr, offsets: dict[Terms, int]) -> Key:
        """Return the terms of an index, and its distance from the first one with these terms."""
        const = size_hint(index.const)
        return repr(index.terms), const - offsets.setdefault(index.terms, const)

    def _operand(self, arg: Arg, offsets: dict[Terms, int]) -> Key:
        """Return the formula of an operand, and its distances from the operands before."""
        if isinstance(arg, Scalar):
            return ("scalar", repr(arg.key))
        shape = self.shapes[arg]
        found = shape.offsets.items()
        return shape.number, *(c - offsets.setdefault(terms, c) for terms, c in found)

    def _overlaps(self, a: Offsets, b: Offsets) -> bool:
        """Whether values at these offsets are mostly the same elements."""
        return all(self._is_short(b[terms] - const, terms) for terms, const in a.items())

    def _is_short(self, distance: int, terms: Terms) -> bool:
        """Whether a distance in memory is that of a small step along the axes.

        A step of about a whole axis is one back from the end of a periodic field.
        """
        for step, extent in self._steps(terms):
            count = round(distance / step)
            distance -= count * step
            if min(abs(count), abs(extent - abs(count))) > MAX_SHIFT_SHARE_OF_EXTENT * extent:
                return False
        return distance == 0

    def _steps(self, terms: Terms) -> Iterator[tuple[int, int]]:
        """Yield the steps of the axes and their extents, the longest step first."""
        found = [(abs(size_hint(c)), size_hint(self.kernel.extent(a))) for a, c in terms]
        return iter(sorted((x for x in found if x[0]), reverse=True))
