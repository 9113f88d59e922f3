"""The bytes that the kernels of a plan move, over the least that they must move."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from tofuse.cost.memory_traffic import region_bytes, value_bytes
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Value

LIMIT = 1.05


@dataclass(frozen=True)
class KnownTraffic:
    """Programs whose kernels may move more, and why."""

    pattern: str
    most: float
    reason: str


AROUND_CALLS = "kernels before and after calls of the library read the same tensors"
TRAFFIC_EXCEPTIONS = (
    KnownTraffic("embedding_norm/*", 1.34, "sums of rows and of positions are two kernels"),
    KnownTraffic("encoder_*", 1.13, AROUND_CALLS),
    KnownTraffic("*_training/*", 1.3, AROUND_CALLS),
)


def traffic_ratio(part: Partition) -> float:
    """Return the bytes that kernels read and write, over those that one kernel would.

    It would read each tensor that no kernel makes, and write what others read: the caller and
    calls of the library. Several views of one tensor count their elements, at most the tensor's.
    """
    aliases = part.aliases
    kernels = [r for r in part.regions if not r.library]
    made = {v for r in kernels for op in r.ops for v in op.results}
    calls = [r for r in part.regions if r.library]
    read_by_others = {aliases.base(v) for r in calls for v in r.inputs}
    read_by_others |= {aliases.base(v) for v in part.graph.outputs if v is not None}
    views: dict[Value, dict[object, int]] = {}
    for v in (v for r in kernels for v in r.inputs if aliases.base(v) not in made):
        ref = aliases.memrefs.get(v)
        place = (v.shape, v.layout) if ref is None else (v.shape, ref.offset, ref.strides)
        views.setdefault(aliases.base(v), {})[place] = value_bytes(v)
    least = sum(min(value_bytes(base), sum(found.values())) for base, found in views.items())
    least += sum(value_bytes(v) for v in made & read_by_others)
    moved = sum(region_bytes(r, aliases.memrefs) for r in kernels)
    return moved / least if least else 1.0


def traffic_faults(case: str, ratio: float) -> list[str]:
    """Return that the kernels of a case move too much, unless an exception allows it."""
    allowed = (e.most for e in TRAFFIC_EXCEPTIONS if fnmatchcase(case, f"{e.pattern}*"))
    limit = max(allowed, default=LIMIT)
    if ratio <= limit:
        return []
    return [f"{case}: kernels move {ratio:.2f} of the least bytes, limit {limit}"]
