"""Region -> two regions, one after the other, that compute the same."""

from __future__ import annotations

from collections.abc import Mapping

from tofuse.analysis.alias import is_view
from tofuse.ir.graph import Value
from tofuse.ir.region import Region, Strided


def cuts(region: Region) -> tuple[int, ...]:
    """Places between ops, such that both sides compute something."""
    work = [k for k, op in enumerate(region.ops) if not is_view(op)]
    return tuple(k for k in range(1, len(region.ops)) if work and work[0] < k <= work[-1])


def split(
    region: Region, storage: Mapping[Value, Strided], cut: int
) -> tuple[Region, Region] | None:
    """The ops before and from `cut` on; None where a view between them has no place in memory."""
    head, tail = region.ops[:cut], region.ops[cut:]
    made = {r for op in head for r in op.results}
    crossing = [v for op in tail for v in op.inputs if v in made]
    if any(v not in storage for v in crossing):
        return None
    passed = {storage[v].root for v in crossing}
    wanted = [r for op in head for r in op.results if r in passed or r in region.outputs]
    later = tuple(v for v in region.outputs if v not in made)
    return (
        Region(f"{region.name}_a", head, tuple(wanted)),
        Region(f"{region.name}_b", tail, later),
    )
