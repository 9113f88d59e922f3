"""Plan -> Plan: place tensors that only kernels see in one block of memory, by lifetime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tofuse.analysis.plan_liveness import last_uses
from tofuse.cost.machine import CACHE_LINE
from tofuse.ir.dims import product
from tofuse.ir.plan import Address, Allocate, Arena, Launch, Plan, Release, Step
from tofuse.ir.types import DType
from tofuse.ir.verify_plan import ARENA, defines, reads


@dataclass(frozen=True)
class _Lifetime:
    """A tensor's size in bytes, and the first and last step that touch it."""

    name: str
    nbytes: int
    first: int
    last: int


def allocate_arena(plan: Plan, size_limit: int | None = None) -> Plan:
    """Replace the allocations of intermediate results of static size by one allocation.

    Tensors that library calls, views or the caller see keep their own allocation, and so do
    tensors of `size_limit` bytes or more.
    """
    lifetimes = [v for v in _lifetimes(plan) if size_limit is None or v.nbytes < size_limit]
    if len(lifetimes) < 2:
        return plan
    offsets, total = assign_offsets(lifetimes)
    first, last = min(v.first for v in lifetimes), max(v.last for v in lifetimes)
    steps: list[Step] = []
    for k, step in enumerate(plan.steps):
        if k == first:
            steps.append(Arena(total))
        if k == last + 1:
            steps.append(Release((ARENA,)))
        match step:
            case Allocate() if step.name in offsets:
                continue
            case Launch():
                tensors = tuple(_arena_operand(t, offsets) for t in step.tensors)
                steps.append(replace(step, tensors=tensors))
            case Release():
                names = tuple(n for n in step.names if n not in offsets)
                steps += [Release(names)] if names else []
            case _:
                steps.append(step)
    return replace(plan, steps=tuple(steps))


def _arena_operand(x: Address, offsets: Mapping[str, int]) -> Address:
    """Return a launch's tensor as `arena+64`, its first byte, if the tensor is in the arena."""
    if x.tensor not in offsets:
        return x
    return Address(ARENA, offsets[x.tensor] + (x.offset or 0))


def _lifetimes(plan: Plan) -> list[_Lifetime]:
    """Return the lifetimes of CPU tensors of static size that only launches use."""
    sizes: dict[str, int] = {}
    first: dict[str, int] = {}
    escaping = set(plan.results)
    for k, step in enumerate(plan.steps):
        match step:
            case Allocate() if step.on_host:
                nbytes = product((*step.shape, step.dtype.itemsize))
                if isinstance(nbytes, int) and step.dtype is not DType.OTHER:
                    sizes[step.name], first[step.name] = nbytes, k
            case Launch() | Release():
                continue
            case _:
                escaping |= {*reads(step), *defines(step)}
    last = last_uses(plan)
    return [_Lifetime(n, size, first[n], last[n]) for n, size in sizes.items() if n not in escaping]


def assign_offsets(lifetimes: Sequence[_Lifetime]) -> tuple[dict[str, int], int]:
    """Return byte offsets such that tensors live at the same time do not overlap, and the total.

    The largest tensor is placed first, each at the lowest offset that is free.
    """
    placed: list[tuple[_Lifetime, int]] = []
    for life in sorted(lifetimes, key=lambda v: (-v.nbytes, v.first, v.name)):
        offset = 0
        for other, start in sorted(placed, key=lambda p: p[1]):
            both_live = other.first <= life.last and life.first <= other.last
            if both_live and start < offset + life.nbytes and offset < start + other.nbytes:
                offset = -(-(start + other.nbytes) // CACHE_LINE) * CACHE_LINE
        placed.append((life, offset))
    total = max((start + v.nbytes for v, start in placed), default=0)
    return {v.name: start for v, start in placed}, total
