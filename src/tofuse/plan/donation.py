"""Decide which new values of mutated arguments are computed directly in the argument's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tofuse.analysis.alias import MemRef, updates_operand
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
    aliases, producers = partition.aliases, dict[Value, int]()
    last_read: dict[Value, int] = {}
    updated: dict[Region, Value | None] = {r: _updated_operand(r) for r in partition.regions}
    read_by_library: set[Value] = set()
    for k, region in enumerate(partition.regions):
        last_read |= dict.fromkeys(map(aliases.owner, region.inputs), k)
        if region in bindings or updated[region] is not None:
            producers |= dict.fromkeys(region.outputs, k)
        if region.library:
            others = (v for v in region.inputs if v is not updated[region])
            read_by_library.update(map(aliases.owner, others))
    returned = set(map(aliases.owner, results))
    sources = (v for target, v in mutations if v is not target)
    # the result of a library call may be a view of its operand, unless it updates that
    read_later = returned | read_by_library | set(map(aliases.owner, sources))
    donations: dict[Value, Value] = {}
    for target, new in mutations:
        memref = aliases.memrefs.get(new)
        if new in donations or new not in producers or new in returned or memref is None:
            continue
        if target in read_later or not _same_layout(target, memref):
            continue
        producer = producers[new]
        read = last_read.get(target, -1)
        region = partition.regions[producer]
        if region in bindings:
            may_alias = bindings[region].may_alias(target, new)
        else:
            may_alias = updated[region] is target
        if (read < producer and region in bindings) or (read == producer and may_alias):
            donations[new] = target
    return donations


def _updated_operand(region: Region) -> Value | None:
    """Return the operand into which a library call may write its result; None if there is none."""
    op = region.ops[0]
    if op.kind != "opaque" or not updates_operand(str(op.attr("target"))):
        return None
    return op.inputs[0] if op.arguments.operand_indices.count(0) == 1 else None


def _same_layout(target: Value, memref: MemRef) -> bool:
    """Whether a value at `memref` has the type, strides and start of the argument's memory."""
    same_start = memref.root.type == target.type and memref.offset == 0
    return same_start and equal_strides(target.layout, memref.strides, target.shape)
