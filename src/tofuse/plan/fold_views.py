"""Memory is allocated in the shape that it is looked at in: one view less to make at every call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.ir.plan import Allocate, Launch, Step, View
from tofuse.ir.plan.verify import reads
from tofuse.plan.buffer_reuse import packed, renamed


def allocate_as_seen(
    steps: Sequence[Step], results: Sequence[str]
) -> tuple[list[Step], tuple[str, ...]]:
    """Give what only launches and views read the shape of one of its views, and drop the view.

    A launch is told where a tensor begins, not how it lies. Views that are returned come first.
    A view that lies just as what it is of is dropped wherever that is read, if neither is returned.
    """
    views = [s for s in steps if isinstance(s, View)]
    dropped = _twins(steps, views, results)
    named = {n for s in steps if not isinstance(s, (Launch, View)) for n in reads(s)}
    named |= {*results, *dropped.values()}
    made = {s.name: s for s in steps if isinstance(s, Allocate) and s.name not in named}
    chosen: dict[str, View] = {}
    for view in sorted(views, key=lambda v: v.name not in results):
        old = made.get(view.source)
        if old is not None and old.name not in chosen and _covers(view, old):
            chosen[old.name] = view
    work: list[Step] = []
    dropped |= {v.name: v.source for v in chosen.values()}
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
    size = packed(old.shape, old.strides)
    return view.offset == 0 and size is not None and size == packed(view.shape, view.strides)


def _twins(steps: Sequence[Step], views: Sequence[View], results: Sequence[str]) -> dict[str, str]:
    """Views by name that are all of a tensor as it was allocated, and which."""
    made = {s.name: (s.shape, s.strides) for s in steps if isinstance(s, Allocate)}
    return {
        v.name: v.source
        for v in views
        if v.offset == 0
        and made.get(v.source) == (v.shape, v.strides)
        and not {v.name, v.source} & {*results}
    }
