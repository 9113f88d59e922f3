"""The axes of a kernel along which scatters combine values, and those of the stores before."""

from __future__ import annotations

from tofuse.ir.kernel import Kernel, Scatter, Store


def combining_axes(kernel: Kernel) -> frozenset[str]:
    """Return the axes along which a scatter may combine several values into one element."""
    return frozenset(a for s in kernel.body if isinstance(s, Scatter) for a in s.over)


def start_stores(kernel: Kernel) -> list[Store]:
    """Return the stores of the elements that scatters combine values into."""
    scattered = {s.buffer for s in kernel.body if isinstance(s, Scatter)}
    return [s for s in kernel.body if isinstance(s, Store) and s.buffer in scattered]
