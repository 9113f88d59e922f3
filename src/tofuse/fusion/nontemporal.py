"""Which results are stored nontemporally, because no region reads them while they are cached."""

from __future__ import annotations

from dataclasses import replace

from tofuse.analysis.alias import MemRef, is_eliminated_concat
from tofuse.cost.machine import CACHE_LINE
from tofuse.cost.thresholds import MIN_NONTEMPORAL_RESULT_BYTES
from tofuse.graph_partition import Partition
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Value
from tofuse.ir.kernel import Kernel, Scatter


def nontemporal_values(part: Partition, l3_bytes: int) -> frozenset[Value]:
    """Return kernel outputs larger than half of the shared cache that are not read soon.

    Soon means by the next region, or before as many bytes are moved. Smaller results stay in the
    cache, with the operands they were made from.
    """
    found: set[Value] = set()
    half_cache, owner = l3_bytes // 2, part.aliases.owner

    for k, region in enumerate(part.regions):
        large = {
            v
            for v in region.outputs
            if size_hint(owner(v).type.nbytes) >= max(MIN_NONTEMPORAL_RESULT_BYTES, half_cache)
            and (v not in part.aliases.slices or _is_aligned(v, part.aliases.slices[v]))
        }
        if region.library or not large:
            continue
        bytes_between = 0
        for later in (r for r in part.regions[k + 1 :] if not is_eliminated_concat(r.ops[-1])):
            read = {owner(v) for v in later.inputs}
            large = {v for v in large if owner(v) not in read}
            bytes_between += sum(size_hint(v.type.nbytes) for v in (*later.inputs, *later.outputs))
            if bytes_between > half_cache or not large:
                break
        found |= large
    return frozenset(found)


def mark_nontemporal(
    kernel: Kernel, arguments: tuple[Value, ...], nontemporal: frozenset[Value]
) -> Kernel:
    """Return the kernel with the output buffers of the given values marked.

    A scatter reads its buffer while it is in the cache.
    """
    scattered = {s.buffer for s in kernel.body if isinstance(s, Scatter)}
    buffers = tuple(
        replace(b, role="nontemporal")
        if b.role == "out" and v in nontemporal and b.name not in scattered
        else b
        for b, v in zip(kernel.buffers, arguments, strict=True)
    )
    return replace(kernel, buffers=buffers)


def _is_aligned(v: Value, memref: MemRef) -> bool:
    """Whether a slice of a concat begins with a cache line."""
    offset = memref.offset
    return isinstance(offset, int) and offset * v.dtype.itemsize % CACHE_LINE == 0
