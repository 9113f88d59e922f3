"""Bytes that a plan holds at each step, beside the arguments of the call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tofuse.ir.dims import product, size_hint
from tofuse.ir.graph import Graph, Value
from tofuse.ir.plan import Allocate, Arena, Call, Launch, Plan, Release, Step, variable
from tofuse.ir.plan.verify import defines
from tofuse.ops.aten_aliases import alias_base


def memory_timeline(
    plan: Plan, graph: Graph, saved: Iterable[Value] = ()
) -> tuple[tuple[int, int], ...]:
    """Return the number of each launch and library call, with the bytes live while it runs.

    `graph` is the program of the plan. The arguments in `saved` count: tensors that the forward
    saved for this backward alone.
    """
    sizes = {variable(v): size_hint(v.type.nbytes) for v in graph.values()}
    roots = {variable(v): variable(v) for v in saved}
    live = {name: sizes[name] for name in roots}
    references = dict.fromkeys(roots, 1)  # of each root: live names for its memory
    total, timeline = sum(live.values()), []
    for k, step in enumerate(plan.steps):
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
            timeline.append((k, total))
        if isinstance(step, Release):
            for root in (roots[n] for n in step.names if n in roots):
                references[root] -= 1
                total -= live[root] if references[root] == 0 else 0
    return tuple(timeline)


def peak_bytes(plan: Plan, graph: Graph, saved: Iterable[Value] = ()) -> int:
    """Return the most bytes that a plan holds at once; see `memory_timeline`."""
    return max((nbytes for _, nbytes in memory_timeline(plan, graph, saved)), default=0)


def _nbytes(step: Step, name: str, sizes: Mapping[str, int]) -> int:
    match step:
        case Arena():
            return step.nbytes
        case Allocate():
            return size_hint(product((*step.shape, step.dtype.itemsize)))
        case _:
            return sizes.get(name, 0)
