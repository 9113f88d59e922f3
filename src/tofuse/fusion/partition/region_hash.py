"""Regions alike: the layers of a deep model are asked about once."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping

from tofuse.ir.graph import Attr, Op, Operand, Value
from tofuse.ir.region import Region, Strided

NO_MATTER = ("stream",)  # attributes that no kernel's loops depend on


def likeness(region: Region, storage: Mapping[Value, Strided], halves: Container[str]) -> Hashable:
    """Equal for regions whose kernels are the same but for the memory they are given.

    That is: the same ops on values of the same types, wired, lying and rounded alike.
    """
    return _Telling(storage, halves).of(region)


class _Telling:
    """Values are numbered as they are met, and described once."""

    def __init__(self, storage: Mapping[Value, Strided], halves: Container[str]) -> None:
        self.storage, self.halves = storage, halves
        self.numbers: dict[Value, int] = {}
        self.found: list[Hashable] = []

    def of(self, region: Region) -> Hashable:
        for op in region.ops:
            self.found.append(self._op(op))
        self.found.append(tuple(map(self._number, region.outputs)))
        return tuple(self.found)

    def _op(self, op: Op) -> Hashable:
        operands = tuple(map(self._operand, op.operands))
        attrs = tuple((n, _exact(a)) for n, a in op.attrs if n not in NO_MATTER)
        return op.kind, operands, attrs, tuple(map(self._number, op.results))

    def _operand(self, x: Operand) -> Hashable:
        return self._number(x) if isinstance(x, Value) else x.key

    def _number(self, v: Value) -> int:
        number = self.numbers.get(v)
        if number is None:
            number = self.numbers[v] = len(self.numbers)
            place = self.storage.get(v)
            lies = None if place is None else (place.offset, place.strides)
            root = None if place is None else self._number(place.root)
            self.found.append((v.type, v.strides, lies, root, v.name in self.halves))
        return number


def _exact(attr: Attr) -> Hashable:
    """0.0 is not -0.0, and 1 is not True."""
    return type(attr), repr(attr) if isinstance(attr, float) else attr
