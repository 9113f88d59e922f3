"""Which new values of arguments are written straight over the old ones, and which copied there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value
from tofuse.ir.region import Partition, Region, Strided
from tofuse.plan.buffer_reuse import Pairs


@dataclass(frozen=True)
class KernelCall:
    """How a region's kernel is called: its number, the values behind its buffers, its sizes.

    `written` says which buffers it writes, and is None where it must be launched by itself;
    `overwrites` are positions (read, written) of buffers that may be one piece of memory.
    """

    kernel: int
    arguments: tuple[Value, ...]
    sizes: tuple[Dim, ...]
    written: tuple[bool, ...] | None
    overwrites: Pairs = ()

    def may_overwrite(self, old: Value, new: Value) -> bool:
        """Whether it may write one value where it reads the other."""
        pairs = ((self.arguments[i], self.arguments[j]) for i, j in self.overwrites)
        return any(a is old and b is new for a, b in pairs)


def find_homes(
    part: Partition,
    writes: Sequence[tuple[Value, Value]],
    results: Sequence[Value],
    calls: Mapping[Region, KernelCall],
) -> dict[Value, Value]:
    """For new values that can be made in the memory of the argument they replace: which that is.

    `writes` are pairs (argument, new value), and take effect when the program ends; so nobody may
    read the argument once its new value is made.
    """
    makers = {v: k for k, r in enumerate(part.regions) if r in calls for v in r.outputs}
    last: dict[Value, int] = {}
    for k, region in enumerate(part.regions):
        last |= dict.fromkeys((root_of(part, v) for v in region.inputs), k)
    returned = {root_of(part, v) for v in results}
    viewed = {root_of(part, v) for r in part.regions if r.library for v in r.inputs}
    sources = {root_of(part, v) for target, v in writes if v is not target}
    homes: dict[Value, Value] = {}
    for target, new in writes:
        place = part.storage.get(new)
        if new in homes or new not in makers or new in returned or place is None:
            continue
        if target in viewed or target in returned or target in sources:
            continue  # what a library call gives may be a view of what it gets
        if not _laid_alike(target, place):
            continue
        maker = makers[new]
        read = last.get(target, -1)
        call = calls[part.regions[maker]]
        if read < maker or (read == maker and call.may_overwrite(target, new)):
            homes[new] = target
    return homes


def root_of(part: Partition, v: Value) -> Value:
    """The value whose memory it lies in."""
    return part.storage[v].root if v in part.storage else v


def _laid_alike(target: Value, place: Strided) -> bool:
    new = place.root
    same = zip(target.layout, place.strides, target.shape, strict=False)
    alike = new.type == target.type and place.offset == 0
    return alike and all(a == b or extent == 1 for a, b, extent in same)
