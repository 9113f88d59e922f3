"""Kernels that write over an operand which nobody reads afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tofuse.ir.plan import Allocate, Call, Launch, Step, View
from tofuse.ir.plan_verify import base_of, reads

Pairs = tuple[tuple[int, int], ...]  # positions (read, written) of buffers


def in_place(
    steps: Sequence[Step],
    results: Sequence[str],
    legal: Mapping[int, Pairs],
    fresh: Sequence[Allocate] = (),
) -> tuple[list[Step], tuple[str, ...]]:
    """Give outputs the memory of dying operands; `legal` has the pairs of every kernel.

    Only what the plan allocated is written over, by a tensor of the same type and strides, or
    what a library call made: `fresh` says how those results lie that are nobody else's.
    """
    work, names = list(steps), tuple(results)
    made = {s.name: s for s in (*work, *fresh) if isinstance(s, Allocate)}
    last = _last_uses(work, names)
    dropped: set[str] = set()
    for k, step in enumerate(work):
        if not isinstance(step, Launch):
            continue
        for i, j in legal.get(step.kernel, ()):
            old, new = step.tensors[i], step.tensors[j]
            if old in made and _fits(made[old], made.get(new), step, last[old], k):
                work[k:] = [renamed(s, new, old) for s in work[k:]]
                names = tuple(old if n == new else n for n in names)
                last[old] = last[new]
                dropped.add(new)
                step = work[k]
                assert isinstance(step, Launch)
    return [s for s in work if not (isinstance(s, Allocate) and s.name in dropped)], names


def _fits(old: Allocate, new: Allocate | None, step: Launch, last: int, now: int) -> bool:
    if new is None or last != now or old.name == new.name:
        return False
    bases = [base_of(t) for t in step.tensors]
    if bases.count(old.name) != 1 or bases.count(new.name) != 1:
        return False
    return (old.shape, old.strides, old.dtype) == (new.shape, new.strides, new.dtype)


def _last_uses(steps: Sequence[Step], results: Sequence[str]) -> dict[str, int]:
    """The last step that reads a tensor or a view of it; past the end where it is returned."""
    root: dict[str, str] = {}
    last: dict[str, int] = {}
    for k, step in enumerate(steps):
        if isinstance(step, View):
            root[step.name] = root.get(step.source, step.source)
        for name in reads(step):
            last[root.get(name, name)] = k
    for name in results:
        last[root.get(name, name)] = len(steps)
    return last


def renamed(step: Step, old: str, new: str) -> Step:
    """A step that reads `new` where it read `old`."""
    match step:
        case Launch():
            tensors = (new + t[len(old) :] if base_of(t) == old else t for t in step.tensors)
            return replace(step, tensors=tuple(tensors))
        case View():
            return replace(step, source=new if step.source == old else step.source)
        case Call():
            return replace(step, args=re.sub(rf"\b{old}\b", new, step.args))
        case _:
            return step
