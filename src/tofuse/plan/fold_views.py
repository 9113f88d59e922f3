"""Plan -> Plan: allocate tensors in the shape of one of their views; drop the view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.ir.plan import Allocate, Launch, Plan, Result, Step, View
from tofuse.ir.verify_plan import reads
from tofuse.plan.buffer_reuse import rename_operand, same_dense_size


def fold_views(plan: Plan) -> Plan:
    """Return the plan with fewer views.

    A tensor that only launches and views read is allocated in the shape of one of its views: a
    launch needs the tensor's address, not its strides. Returned views are preferred.
    A view with its source's shape and strides is replaced by the source, if neither is returned.
    """
    steps, results = plan.steps, plan.results
    views = [s for s in steps if isinstance(s, View)]
    replaced = _identity_views(steps, views, results)
    pinned = {n for s in steps if not isinstance(s, (Launch, View)) for n in reads(s)}
    pinned |= {*replaced.values(), *(n for n in results if isinstance(n, str))}
    allocations = {s.name: s for s in steps if isinstance(s, Allocate) and s.name not in pinned}
    folded: dict[str, View] = {}
    for view in sorted(views, key=lambda v: v.name not in results):
        allocation = allocations.get(view.source)
        if allocation is None or allocation.name in folded:
            continue
        if view.offset == 0 and same_dense_size(allocation, view):
            folded[allocation.name] = view
    replaced |= {v.name: v.source for v in folded.values()}
    rewritten: list[Step] = []
    for step in steps:
        if isinstance(step, View) and step.name in replaced:
            continue
        if isinstance(step, Allocate) and step.name in folded:
            view = folded[step.name]
            step = replace(step, shape=view.shape, strides=view.strides)
        for name in reads(step):
            if name in replaced:
                step = rename_operand(step, name, replaced[name])
        rewritten.append(step)
    names = tuple(replaced.get(n, n) if isinstance(n, str) else n for n in results)
    return replace(plan, steps=tuple(rewritten), results=names)


def _identity_views(
    steps: Sequence[Step], views: Sequence[View], results: Sequence[Result]
) -> dict[str, str]:
    """Map views with the shape and strides of their allocated source to that source."""
    layouts = {s.name: (s.shape, s.strides) for s in steps if isinstance(s, Allocate)}
    return {
        v.name: v.source
        for v in views
        if v.offset == 0
        and layouts.get(v.source) == (v.shape, v.strides)
        and not {v.name, v.source} & {*results}
    }
