"""Footprint: the bytes of each buffer that a kernel touches."""

from __future__ import annotations

import math
from typing import Union

from tofuse.analysis.guard_ranges import touched_fractions
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import size_hint
from tofuse.ir.interleave import interleave_groups
from tofuse.ir.kernel import Gather, Kernel, Load, Store

Access = Union[Load, Store, Gather]  # noqa: UP007


class Footprint:
    """The bytes that each access touches, for vectors along an axis.

    The accesses in `interleaved` belong to interleave groups. The leader of a group counts the
    bytes of all members; the other members are in `counted_by_leader`.
    """

    def __init__(self, kernel: Kernel, along: str | None = None) -> None:
        self.kernel, self.fractions = kernel, touched_fractions(kernel)
        self.itemsize = {b.name: b.dtype.itemsize for b in kernel.buffers}
        groups = {} if along is None else interleave_groups(kernel.body, along)
        self.interleaved: frozenset[Access] = frozenset(groups)
        self.counted_by_leader: frozenset[Access] = frozenset(
            s for s, members in groups.items() if not members
        )
        self._group_sizes = {s.buffer: len(members) for s, members in groups.items() if members}

    def access_bytes(self, access: Access) -> float:
        """Return the bytes of the distinct elements that an access, or its group, touches."""
        elements = self._distinct(access.index) * self.fractions.get(access.buffer, 1.0)
        elements *= self._group_sizes.get(access.buffer, 1)
        if isinstance(access, Gather):
            points = math.prod(size_hint(a.extent) for a in self.kernel.axes)
            elements = min(points, elements * size_hint(access.extent))
        return float(elements * self.itemsize[access.buffer])

    def buffer_bytes(self) -> dict[str, float]:
        """Return the bytes that the largest access of each buffer touches."""
        largest: dict[str, Access] = {}
        for s in self.kernel.body:
            if isinstance(s, (Load, Store, Gather)):
                other = largest.get(s.buffer)
                if other is None or self._distinct(s.index) > self._distinct(other.index):
                    largest[s.buffer] = s
        return {name: self.access_bytes(s) for name, s in largest.items()}

    def _distinct(self, index: AffineExpr) -> int:
        """Return the number of values of an affine index, if it is injective in its axes."""
        return math.prod(size_hint(self.kernel.extent(a)) for a in index.axes)


def widest_element(kernel: Kernel) -> int:
    """Return the bytes of the largest element among accesses that all axes index."""
    itemsizes = {b.name: b.dtype.itemsize for b in kernel.buffers}
    accesses = [s for s in kernel.body if isinstance(s, (Load, Store, Gather))]
    own = [s for s in accesses if len(s.index.axes) == len(kernel.axes)]
    return max((itemsizes[s.buffer] for s in own or accesses), default=4)
