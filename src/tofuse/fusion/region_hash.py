"""The structure of regions: equal layers of a deep model are lowered and evaluated once."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass

from tofuse.analysis.alias import MemRef
from tofuse.ir.call_arguments import exact_key
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.graph import Attr, Op, Operand, Value
from tofuse.ir.region import Region


@dataclass(frozen=True, eq=False)
class RegionStructure:
    """A key that is equal for regions whose kernels differ only in memory and random streams.

    Such regions have the same ops, connected alike, on values of the same types, strides and
    rounding. Their `values` and `streams` correspond by position.
    """

    key: Hashable
    values: tuple[Value, ...]
    streams: tuple[Dim, ...]


def region_structure(
    region: Region, storage: Mapping[Value, MemRef], rounded: Container[str]
) -> RegionStructure:
    """Return the structure of a region."""
    return _Hasher(storage, rounded).structure(region)


class _Hasher:
    """Numbers values and streams in order of first use and describes each value once."""

    def __init__(self, storage: Mapping[Value, MemRef], rounded: Container[str]) -> None:
        self.storage, self.rounded = storage, rounded
        self.numbers: dict[Value, int] = {}
        self.streams: dict[Dim, int] = {}
        self.entries: list[Hashable] = []

    def structure(self, region: Region) -> RegionStructure:
        for op in region.ops:
            self.entries.append(self._op(op))
        self.entries.append(tuple(map(self._number, region.outputs)))
        return RegionStructure(tuple(self.entries), tuple(self.numbers), tuple(self.streams))

    def _op(self, op: Op) -> Hashable:
        operands = tuple(map(self._operand, op.operands))
        attrs = tuple((n, self._attr(n, a)) for n, a in op.attrs)
        return op.kind, operands, attrs, tuple(map(self._number, op.results))

    def _attr(self, name: str, attr: Attr) -> Hashable:
        if name == "stream":
            assert isinstance(attr, (int, SymDim))
            return self.streams.setdefault(attr, len(self.streams))
        return exact_key(attr)

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
