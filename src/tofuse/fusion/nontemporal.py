"""Which results are written past the caches, because nothing will find them there."""

from __future__ import annotations

from dataclasses import replace

from tofuse.ir.dims import hint
from tofuse.ir.graph import Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.region import Partition, Strided, is_placed

LINE = 64  # bytes
LEAST = 8 << 20  # bytes of a result, whatever the caches


def streamed(part: Partition, l3_bytes: int) -> frozenset[Value]:
    """Outputs of kernels that are larger than half of the shared cache, and that are not read soon:
    by the next region, or before as much is moved.

    What is smaller is found there, with what it was made of, by whoever reads it.
    """
    found: set[Value] = set()
    most = l3_bytes // 2

    def memory(v: Value) -> Value:
        root = part.storage[v].root if v in part.storage else v
        return part.parts[root].root if root in part.parts else root

    for k, region in enumerate(part.regions):
        made = [v for v in region.outputs if v not in part.parts or _is_aligned(v, part.parts[v])]
        large = {v for v in made if hint(memory(v).type.nbytes) >= max(LEAST, most)}
        if region.library or not large:
            continue
        between = 0
        for after in (r for r in part.regions[k + 1 :] if not is_placed(r.ops[-1])):
            read = {memory(v) for v in after.inputs}
            large = {v for v in large if memory(v) not in read}
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


def _is_aligned(v: Value, home: Strided) -> bool:
    """Whether a part of a tensor begins with a cache line."""
    at = home.offset
    return isinstance(at, int) and at * v.dtype.itemsize % LINE == 0
