"""Liveness of a plan's tensors: the owner, the last use and the bytes held at each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tofuse.analysis.alias import returns_view
from tofuse.ir.dims import product, size_hint
from tofuse.ir.graph import Graph, Value
from tofuse.ir.plan import (
    Address,
    Allocate,
    Arena,
    Call,
    Launch,
    Plan,
    Release,
    Step,
    Tiles,
    View,
    variable,
)
from tofuse.ir.verify_plan import defines, reads


def viewed_tensor(step: Step) -> str | None:
    """Return the tensor whose memory a step's results share; None if they have their own."""
    if isinstance(step, View):
        return step.source
    if isinstance(step, Call) and returns_view(step.target):
        return reads(step)[0]
    return None


def owners_of(steps: Iterable[Step]) -> dict[str, str]:
    """Return the tensor that owns the memory of each view, those of PyTorch's included."""
    owners: dict[str, str] = {}
    for step in steps:
        source = viewed_tensor(step)
        if source is not None:
            owners |= dict.fromkeys(defines(step), owners.get(source, source))
    return owners


def last_uses(plan: Plan) -> dict[str, int]:
    """Return the last step that reads or makes each tensor; -1 for an unused parameter.

    Results are used after the last step. Releases do not count, and a launch of a group counts as
    the last one of its group.
    """
    last = dict.fromkeys((p.name for p in plan.parameters), -1)
    group_ends = {x.group: k for k, x in enumerate(plan.steps) if isinstance(x, Launch)}
    for k, step in enumerate(plan.steps):
        if isinstance(step, Release):
            continue
        end = k if not isinstance(step, Launch) or step.group is None else group_ends[step.group]
        last |= dict.fromkeys((*reads(step), *defines(step)), end)
    returned = (name for name in plan.results if isinstance(name, str))
    return last | dict.fromkeys(returned, len(plan.steps))


def owned_address(address: Address, owners: Mapping[str, str]) -> Address:
    """Return the memory of an operand of a launch, in the tensor that owns it."""
    # a view may cover any part of its owner
    return Address(owners[address.tensor]) if address.tensor in owners else address


def memory_timeline(
    plan: Plan, graph: Graph, saved: Iterable[Value] = ()
) -> tuple[tuple[int, int], ...]:
    """Return the number of each launch and library call, with the bytes live while it runs.

    `graph` is the program of the plan. The arguments in `saved` count: tensors that the forward
    saved for this backward alone.
    """
    sizes = {variable(v): size_hint(v.type.nbytes) for v in graph.values()}
    owners = owners_of(plan.steps)
    held = {name: sizes[name] for name in map(variable, saved)}  # by owner; no other arguments
    references = Counter(held.keys())  # of each owner: live names for its memory
    total, timeline = sum(held.values()), []
    for k, step in enumerate(plan.steps):
        for name in defines(step):
            if name not in owners:
                held[name] = _nbytes(step, name, sizes)
                total += held[name]
            references[owners.get(name, name)] += 1
        if isinstance(step, (Launch, Call)):
            timeline.append((k, total))
        if isinstance(step, Release):
            for owner in (owners.get(n, n) for n in step.names):
                references[owner] -= 1
                total -= held.get(owner, 0) if references[owner] == 0 else 0
    return tuple(timeline)


def peak_bytes(plan: Plan, graph: Graph, saved: Iterable[Value] = ()) -> int:
    """Return the most bytes that a plan holds at once; see `memory_timeline`."""
    return max((nbytes for _, nbytes in memory_timeline(plan, graph, saved)), default=0)


def _nbytes(step: Step, name: str, sizes: Mapping[str, int]) -> int:
    match step:
        case Arena():
            return step.nbytes
        case Tiles():
            return sum(s.nbytes for s in step.scratch if s.name == name)
        case Allocate():
            return size_hint(product((*step.shape, step.dtype.itemsize)))
        case _:
            return sizes.get(name, 0)
