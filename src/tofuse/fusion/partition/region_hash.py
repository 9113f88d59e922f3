"""Structural keys of regions: equal layers of a deep model are evaluated once."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping

from tofuse.ir.graph import Attr, Op, Operand, Value
from tofuse.ir.region import MemRef, Region

IGNORED_ATTRS = ("stream",)  # attributes that the loops of a kernel do not depend on


def structural_key(
    region: Region, storage: Mapping[Value, MemRef], rounded: Container[str]
) -> Hashable:
    """Return equal keys for regions whose kernels differ only in the memory they are given.

    Such regions have the same ops, connected alike, on values of the same types, strides and
    rounding.
    """
    return _Hasher(storage, rounded).key(region)


class _Hasher:
    """Numbers values in order of first use and describes each once."""

    def __init__(self, storage: Mapping[Value, MemRef], rounded: Container[str]) -> None:
        self.storage, self.rounded = storage, rounded
        self.numbers: dict[Value, int] = {}
        self.entries: list[Hashable] = []

    def key(self, region: Region) -> Hashable:
        for op in region.ops:
            self.entries.append(self._op(op))
        self.entries.append(tuple(map(self._number, region.outputs)))
        return tuple(self.entries)

    def _op(self, op: Op) -> Hashable:
        operands = tuple(map(self._operand, op.operands))
        attrs = tuple((n, _typed(a)) for n, a in op.attrs if n not in IGNORED_ATTRS)
        return op.kind, operands, attrs, tuple(map(self._number, op.results))

    def _operand(self, x: Operand) -> Hashable:
        return self._number(x) if isinstance(x, Value) else x.key

    def _number(self, v: Value) -> int:
        number = self.numbers.get(v)
        if number is None:
            number = self.numbers[v] = len(self.numbers)
            memref = self.storage.get(v)
            layout = None if memref is None else (memref.offset, memref.strides)
            root = None if memref is None else self._number(memref.root)
            self.entries.append((v.type, v.strides, layout, root, v.name in self.rounded))
        return number


def _typed(attr: Attr) -> Hashable:
    """Distinguish 0.0 from -0.0, and 1 from True."""
    return type(attr), repr(attr) if isinstance(attr, float) else attr
