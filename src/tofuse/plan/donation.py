"""Decide which new values of mutated arguments are computed directly in the argument's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tofuse.analysis.alias import MemRef
from tofuse.graph_partition import Partition
from tofuse.ir.dims import equal_strides
from tofuse.ir.graph import Value
from tofuse.ir.region import Region
from tofuse.plan.kernel_binding import KernelBinding


def assign_donations(
    partition: Partition,
    mutations: Sequence[tuple[Value, Value]],
    results: Sequence[Value],
    bindings: Mapping[Region, KernelBinding],
) -> dict[Value, Value]:
    """Map each new value that may be written directly into an argument's memory to the argument.

    `mutations` are pairs (argument, new value) that take effect when the program ends. So the
    argument must not be read after its new value is written.
    """
    regions = enumerate(partition.regions)
    producers = {v: k for k, r in regions if r in bindings for v in r.outputs}
    aliases = partition.aliases
    last_read: dict[Value, int] = {}
    for k, region in enumerate(partition.regions):
        last_read |= dict.fromkeys(map(aliases.owner, region.inputs), k)
    returned = set(map(aliases.owner, results))
    sources = (v for target, v in mutations if v is not target)
    # the result of a library call may be a view of its operand
    read_later = returned.union(map(aliases.owner, (*aliases.read_by_library, *sources)))
    donations: dict[Value, Value] = {}
    for target, new in mutations:
        memref = aliases.memrefs.get(new)
        if new in donations or new not in producers or new in returned or memref is None:
            continue
        if target in read_later or not _same_layout(target, memref):
            continue
        producer = producers[new]
        read = last_read.get(target, -1)
        binding = bindings[partition.regions[producer]]
        if read < producer or (read == producer and binding.may_alias(target, new)):
            donations[new] = target
    return donations


def _same_layout(target: Value, memref: MemRef) -> bool:
    """Whether a value at `memref` has the type, strides and start of the argument's memory."""
    same_start = memref.root.type == target.type and memref.offset == 0
    return same_start and equal_strides(target.layout, memref.strides, target.shape)
