"""Plan -> Plan: tensors that only kernels see share one block of memory, reused when dead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tofuse.ir.dims import product
from tofuse.ir.plan import Allocate, Arena, Launch, Plan, Release, Step
from tofuse.ir.plan.verify import (
    ARENA,
    base_of,
    makes,
    reads,
)
from tofuse.ir.types import DType

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


@dataclass(frozen=True)
class _Life:
    """A tensor's size in bytes, and the first and last step that touch it."""

    name: str
    nbytes: int
    first: int
    last: int


def with_arena(plan: Plan, below: int | None = None) -> Plan:
    """One allocation instead of one for each intermediate result of known size.

    Tensors that library calls, views or the caller see stay tensors of their own, and so do those
    of `below` bytes and more.
    """
    lives = [v for v in _lives(plan) if below is None or v.nbytes < below]
    if len(lives) < 2:
        return plan
    offsets, total = place(lives)
    first, last = min(v.first for v in lives), max(v.last for v in lives)
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
                tensors = tuple(_inside(t, offsets) for t in step.tensors)
                steps.append(replace(step, tensors=tensors))
            case Release():
                names = tuple(n for n in step.names if n not in offsets)
                steps += [Release(names)] if names else []
            case _:
                steps.append(step)
    return replace(plan, steps=tuple(steps))


def _inside(tensor: str, offsets: Mapping[str, int]) -> str:
    """A launch's tensor, by the byte of the arena where it begins if it lies there."""
    base = base_of(tensor)
    at = int(tensor[len(base) + 1 :] or 0)
    return f"arena+{offsets[base] + at}" if base in offsets else tensor


def _lives(plan: Plan) -> list[_Life]:
    sizes: dict[str, int] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    exposed = set(plan.results)
    ends = {x.group: k for k, x in enumerate(plan.steps) if isinstance(x, Launch)}
    for k, step in enumerate(plan.steps):
        match step:
            case Allocate(device="cpu"):
                nbytes = product((*step.shape, step.dtype.itemsize))
                if isinstance(nbytes, int) and step.dtype is not DType.OTHER:
                    sizes[step.name], first[step.name] = nbytes, k
            case Launch():
                last |= dict.fromkeys(reads(step), k if step.group is None else ends[step.group])
            case Release():
                continue
            case _:
                exposed |= {*reads(step), *makes(step)}
    return [
        _Life(n, size, first[n], last.get(n, first[n]))
        for n, size in sizes.items()
        if n not in exposed
    ]


def place(lives: Sequence[_Life]) -> tuple[dict[str, int], int]:
    """Offsets such that no two tensors alive at once overlap, the largest placed first."""
    placed: list[tuple[_Life, int]] = []
    for life in sorted(lives, key=lambda v: (-v.nbytes, v.first, v.name)):
        offset = 0
        for other, at in sorted(placed, key=lambda p: p[1]):
            together = other.first <= life.last and life.first <= other.last
            if together and at < offset + life.nbytes and offset < at + other.nbytes:
                offset = -(-(at + other.nbytes) // ALIGNMENT) * ALIGNMENT
        placed.append((life, offset))
    total = max((at + v.nbytes for v, at in placed), default=0)
    return {v.name: at for v, at in placed}, total
