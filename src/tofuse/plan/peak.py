"""The bytes a plan holds from step to step, beside the arguments of the call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tofuse.ir.dims import hint, product
from tofuse.ir.plan import Allocate, Arena, Call, Launch, Plan, Release, Step
from tofuse.ir.plan.verify import makes
from tofuse.ops.aten_aliases import lender

Timeline = tuple[tuple[str, int], ...]


def timeline(plan: Plan, sizes: Mapping[str, int], held: Iterable[str] = ()) -> Timeline:
    """For every launch and every library call its name and the bytes live meanwhile.

    `sizes` are the bytes of tensors by name; `held` names the arguments that live for this plan
    alone, as what a forward saved does for the backward.
    """
    roots = {name: name for name in held}
    live = {name: sizes[name] for name in roots}
    holders = dict.fromkeys(roots, 1)
    total, found = sum(live.values()), []
    for step in plan.steps:
        for name in makes(step):
            source = lender(step)
            root = name if source is None else roots.get(source)
            if root is None:
                continue  # a view of an argument
            roots[name] = root
            holders[root] = holders.get(root, 0) + 1
            if root == name:
                live[name] = _nbytes(step, name, sizes)
                total += live[name]
        if isinstance(step, (Launch, Call)):
            found.append((step.name if isinstance(step, Launch) else step.target, total))
        if isinstance(step, Release):
            for root in (roots[n] for n in step.names if n in roots):
                holders[root] -= 1
                total -= live[root] if holders[root] == 0 else 0
    return tuple(found)


def peak(found: Sequence[tuple[str, int]]) -> int:
    """The most bytes of a timeline."""
    return max((nbytes for _, nbytes in found), default=0)


def _nbytes(step: Step, name: str, sizes: Mapping[str, int]) -> int:
    match step:
        case Arena():
            return step.nbytes
        case Allocate():
            return hint(product((*step.shape, step.dtype.itemsize)))
        case _:
            return sizes.get(name, 0)
