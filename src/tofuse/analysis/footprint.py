"""How many bytes of its buffers a kernel touches."""

from __future__ import annotations

import math
from typing import Union

from tofuse.analysis.guard_coverage import touched
from tofuse.ir.dims import hint
from tofuse.ir.interleave import groups
from tofuse.ir.kernel import Affine, Kernel, Load, Store, Take

Access = Union[Load, Store, Take]  # noqa: UP007


class Spans:
    """Bytes by access, where vectors run along an axis.

    Accesses `beside` one another there, as the colours of pixels, are read or written together;
    one of them moves the memory of all, the others are `carried`.
    """

    def __init__(self, kernel: Kernel, along: str | None = None) -> None:
        self.kernel, self.touched = kernel, touched(kernel)
        self.itemsize = {b.name: b.dtype.itemsize for b in kernel.buffers}
        found = {} if along is None else groups(kernel.body, along)
        self.beside: frozenset[Access] = frozenset(found)
        self.carried: frozenset[Access] = frozenset(
            s for s, members in found.items() if not members
        )
        self._together = {s.buffer: len(members) for s, members in found.items() if members}

    def span(self, access: Access) -> float:
        """Bytes of the distinct elements that an access touches, or it and those beside it."""
        elements = self._distinct(access.index) * self.touched.get(access.buffer, 1.0)
        elements *= self._together.get(access.buffer, 1)
        if isinstance(access, Take):
            points = math.prod(hint(a.extent) for a in self.kernel.axes)
            elements = min(points, elements * hint(access.extent))
        return float(elements * self.itemsize[access.buffer])

    def of_buffers(self) -> dict[str, float]:
        """By buffer, what the access touches that touches most of it."""
        found: dict[str, Access] = {}
        for s in self.kernel.body:
            if isinstance(s, (Load, Store, Take)):
                other = found.get(s.buffer)
                if other is None or self._distinct(s.index) > self._distinct(other.index):
                    found[s.buffer] = s
        return {name: self.span(s) for name, s in found.items()}

    def _distinct(self, index: Affine) -> int:
        """How many places an affine index takes, if no two points share one."""
        return math.prod(hint(self.kernel.extent(a)) for a in index.axes)
