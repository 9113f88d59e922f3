"""Split a region into two consecutive ones that compute the same."""

from __future__ import annotations

from collections.abc import Container, Mapping

from tofuse.analysis.alias import MemRef, is_view
from tofuse.cost.memory_traffic import value_bytes
from tofuse.ir.graph import Value
from tofuse.ir.region import Region

Split = frozenset[frozenset[str]]  # result names in parts; no kernel computes results of two parts


def cut_positions(region: Region) -> tuple[int, ...]:
    """Return the positions in `region.ops` that leave computing ops on both sides."""
    computing = [k for k, op in enumerate(region.ops) if not is_view(op)]
    return tuple(
        k for k in range(1, len(region.ops)) if computing and computing[0] < k <= computing[-1]
    )


def split_region(
    region: Region, storage: Mapping[Value, MemRef], cut: int
) -> tuple[Region, Region] | None:
    """Return the ops before `cut` and those from `cut` on as regions.

    None if a value that crosses the cut is a view without strides.
    """
    head, tail = region.ops[:cut], region.ops[cut:]
    made = {r for op in head for r in op.results}
    crossing = [v for op in tail for v in op.inputs if v in made]
    if any(v not in storage for v in crossing):
        return None
    crossing_roots = {storage[v].root for v in crossing}
    head_outputs = [
        r for op in head for r in op.results if r in crossing_roots or r in region.outputs
    ]
    tail_outputs = tuple(v for v in region.outputs if v not in made)
    return (
        Region(f"{region.name}_a", head, tuple(head_outputs)),
        Region(f"{region.name}_b", tail, tail_outputs),
    )


def split_by_peak(
    region: Region, dead_after: Container[Value], storage: Mapping[Value, MemRef]
) -> Split | None:
    """Return a region's results as two consecutive parts with the lowest peak memory.

    None if no cut lowers the peak. One kernel holds all its inputs and outputs while it runs. Of
    two kernels, the first hands over what the second reads, and its own inputs are free by then
    if they are in `dead_after`: values without readers after the region.
    """
    written_at: dict[Value, int] = {}
    last_read_at: dict[Value, int] = {}
    viewed: dict[Value, Value] = {}  # by view
    names: list[frozenset[str]] = []  # of the results of each computing op
    for op in region.ops:
        if is_view(op):
            viewed[op.result] = viewed.get(op.inputs[0], op.inputs[0])
            continue
        for v in op.inputs:
            source = viewed.get(v, v)
            if source not in written_at and source in storage:
                source = storage[source].root
            last_read_at[source] = len(names)
        written_at |= dict.fromkeys(op.results, len(names))
        names.append(frozenset(v.name for v in op.results))
    outputs = set(region.outputs)
    dying = [
        (at, value_bytes(v))
        for v, at in last_read_at.items()
        if v not in written_at and v in dead_after
    ]

    def peak(cut: int) -> int:
        """Return the most bytes held while two kernels run, the second from op `cut` on."""
        inputs = sum(n for _, n in dying)
        handed_over = [
            v
            for v, at in written_at.items()
            if at < cut and (v in outputs or last_read_at.get(v, 0) >= cut)
        ]
        first = inputs + sum(map(value_bytes, handed_over))
        freed = sum(n for at, n in dying if at < cut)
        second = first - freed + sum(value_bytes(v) for v in outputs if written_at[v] >= cut)
        return max(first, second)

    best = min(range(1, len(names)), key=peak, default=0)
    if not best or peak(best) >= peak(0):
        return None
    return frozenset((frozenset().union(*names[:best]), frozenset().union(*names[best:])))
