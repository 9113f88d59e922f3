"""Which results are written past the caches, because nothing will find them there."""

from __future__ import annotations

from dataclasses import replace

from tofuse.ir.dims import hint
from tofuse.ir.graph import Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.region import Partition, Strided

LEAST = 8 << 20  # bytes of a result, whatever the caches


def streamed(part: Partition, l3_bytes: int) -> frozenset[Value]:
    """Outputs of kernels that are larger than half of the shared cache, and that are not read soon:
    by the next region, or before as much is moved.

    What is smaller is found there, with what it was made of, by whoever reads it.
    """
    found: set[Value] = set()
    most = l3_bytes // 2
    for k, region in enumerate(part.regions):
        large = {v for v in region.outputs if hint(v.type.nbytes) >= max(LEAST, most)}
        if region.library or not large:
            continue
        between = 0
        for after in part.regions[k + 1 :]:
            large -= {_root(part.storage, v) for v in after.inputs}
            between += sum(hint(v.type.nbytes) for v in (*after.inputs, *after.outputs))
            if between > most or not large:
                break
        found |= large
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
