"""Memory is allocated in the shape that it is looked at in: one view less to make at every call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.ir.dims import Dim, product
from tofuse.ir.plan import Allocate, Launch, Step, View
from tofuse.ir.plan_verify import reads
from tofuse.runtime.in_place import renamed


def allocate_as_seen(
    steps: Sequence[Step], results: Sequence[str]
) -> tuple[list[Step], tuple[str, ...]]:
    """Give what only launches and views read the shape of one of its views, and drop the view.

    A launch is told where a tensor begins, not how it lies. Views that are returned come first.
    """
    named = {n for s in steps if not isinstance(s, (Launch, View)) for n in reads(s)} | {*results}
    made = {s.name: s for s in steps if isinstance(s, Allocate) and s.name not in named}
    chosen: dict[str, View] = {}
    views = [s for s in steps if isinstance(s, View)]
    for view in sorted(views, key=lambda v: v.name not in results):
        old = made.get(view.source)
        if old is not None and old.name not in chosen and _covers(view, old):
            chosen[old.name] = view
    work: list[Step] = []
    dropped = {v.name: v.source for v in chosen.values()}
    for step in steps:
        if isinstance(step, View) and step.name in dropped:
            continue
        if isinstance(step, Allocate) and step.name in chosen:
            view = chosen[step.name]
            step = replace(step, shape=view.shape, strides=view.strides)
        for name in reads(step):
            if name in dropped:
                step = renamed(step, name, dropped[name])
        work.append(step)
    return work, tuple(dropped.get(n, n) for n in results)


def _covers(view: View, old: Allocate) -> bool:
    """Whether both are all of a block of the same size, without a gap."""
    size = _packed(old.shape, old.strides)
    return view.offset == 0 and size is not None and size == _packed(view.shape, view.strides)


def _packed(shape: Sequence[Dim], strides: Sequence[Dim]) -> Dim | None:
    """The number of elements; None where they lie with gaps or over one another, or may."""
    if not all(isinstance(d, int) for d in (*shape, *strides)):
        return None
    size: Dim = 1
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent != 1:
            if stride != size:
                return None
            size *= extent
    return product(shape)
