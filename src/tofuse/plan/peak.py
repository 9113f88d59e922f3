"""Bytes that a plan holds at each step, beside the arguments of the call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tofuse.ir.dims import product, size_hint
from tofuse.ir.plan import Allocate, Arena, Call, Launch, Plan, Release, Step
from tofuse.ir.plan.verify import defines
from tofuse.ops.aten_aliases import alias_base

MemoryTimeline = tuple[tuple[str, int], ...]  # (name of a launch or library call, live bytes)


def memory_timeline(
    plan: Plan, sizes: Mapping[str, int], saved: Iterable[str] = ()
) -> MemoryTimeline:
    """Return the name of every launch and library call with the bytes live while it runs.

    `sizes` maps tensor names to bytes. `saved` names arguments that count: tensors that the
    forward saved for this backward alone.
    """
    roots = {name: name for name in saved}
    live = {name: sizes[name] for name in roots}
    references = dict.fromkeys(roots, 1)  # of each root: live names for its memory
    total, timeline = sum(live.values()), []
    for step in plan.steps:
        for name in defines(step):
            source = alias_base(step)
            root = name if source is None else roots.get(source)
            if root is None:
                continue  # a view of an argument
            roots[name] = root
            references[root] = references.get(root, 0) + 1
            if root == name:
                live[name] = _nbytes(step, name, sizes)
                total += live[name]
        if isinstance(step, (Launch, Call)):
            timeline.append((step.name if isinstance(step, Launch) else step.target, total))
        if isinstance(step, Release):
            for root in (roots[n] for n in step.names if n in roots):
                references[root] -= 1
                total -= live[root] if references[root] == 0 else 0
    return tuple(timeline)


def peak(timeline: Sequence[tuple[str, int]]) -> int:
    """Return the largest number of bytes in a timeline."""
    return max((nbytes for _, nbytes in timeline), default=0)


def _nbytes(step: Step, name: str, sizes: Mapping[str, int]) -> int:
    match step:
        case Arena():
            return step.nbytes
        case Allocate():
            return size_hint(product((*step.shape, step.dtype.itemsize)))
        case _:
            return sizes.get(name, 0)
