"""Which results are written past the caches, because nothing will find them there."""

from __future__ import annotations

from dataclasses import replace

from tofuse.ir.dims import hint
from tofuse.ir.graph import Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.region import Partition, Strided

LARGE = 8 << 20  # bytes; streamed stores gain 30 to 40 % there, see docs/measurements.md


def streamed(part: Partition) -> frozenset[Value]:
    """Large outputs of kernels that the next region does not read."""
    found: set[Value] = set()
    regions = [*part.regions, None]
    for region, after in zip(part.regions, regions[1:], strict=True):
        soon = {_root(part.storage, v) for v in after.inputs} if after is not None else set()
        for v in () if region.library else region.outputs:
            if hint(v.type.nbytes) >= LARGE and v not in soon:
                found.add(v)
    return frozenset(found)


def with_streams(kernel: Kernel, arguments: tuple[Value, ...], streams: frozenset[Value]) -> Kernel:
    """The kernel with the output buffers of those values marked."""
    buffers = tuple(
        replace(b, role="stream") if b.role == "out" and v in streams else b
        for b, v in zip(kernel.buffers, arguments, strict=True)
    )
    return replace(kernel, buffers=buffers)


def _root(storage: dict[Value, Strided], v: Value) -> Value:
    return storage[v].root if v in storage else v
