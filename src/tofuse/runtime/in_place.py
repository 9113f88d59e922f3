"""Kernels that write over an operand which nobody reads afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tofuse.ir.kernel import Load, Store, Take
from tofuse.ir.loops import Do, For, Nest, Node
from tofuse.ir.plan import Allocate, Call, Launch, Step, View
from tofuse.ir.plan_verify import reads

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Place:
    """A statement in a nest: its number in program order, and the loops around it."""

    stmt: Load | Store | Take
    number: int
    phase: int
    loops: tuple[For, ...]


def overwrites(nest: Nest) -> Pairs:
    """Positions of buffers (read, written) that may be the same memory.

    An element is then read for the last time before it is written: every read of the buffer is at
    the index of the one write, stands before it, and no loop around both runs over other axes.
    """
    places = list(_places(nest))
    found = []
    for j, out in enumerate(nest.kernel.buffers):
        stores = [p for p in places if isinstance(p.stmt, Store) and p.stmt.buffer == out.name]
        if out.role == "in" or len(stores) != 1:
            continue
        for i, source in enumerate(nest.kernel.buffers):
            loads = [p for p in places if p.stmt.buffer == source.name]
            alike = source.role == "in" and source.dtype == out.dtype and bool(loads)
            if alike and all(_before(nest, p, stores[0]) for p in loads):
                found.append((i, j))
    return tuple(found)


def _before(nest: Nest, read: _Place, write: _Place) -> bool:
    stmt = read.stmt
    if not isinstance(stmt, Load) or stmt.index != write.stmt.index or read.number > write.number:
        return False
    around = {f.loop.axis for f in read.loops if any(f is g for g in write.loops)}
    if read.phase == write.phase:
        around |= {loop.axis for loop in nest.phases[read.phase].band}
    return around <= set(stmt.index.axes)


def _places(nest: Nest) -> Iterator[_Place]:
    number = 0
    for k, phase in enumerate(nest.phases):
        for stmt, loops in _walk((*phase.head, *phase.body), ()):
            number += 1
            yield _Place(stmt, number, k, loops)


def _walk(
    nodes: Sequence[Node], loops: tuple[For, ...]
) -> Iterator[tuple[Load | Store | Take, tuple[For, ...]]]:
    for node in nodes:
        if isinstance(node, For):
            yield from _walk(node.body, (*loops, node))
        elif isinstance(node, Do) and isinstance(node.stmt, (Load, Store, Take)):
            yield node.stmt, loops


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
                work[k:] = [_renamed(s, new, old) for s in work[k:]]
                names = tuple(old if n == new else n for n in names)
                last[old] = last[new]
                dropped.add(new)
                step = work[k]
                assert isinstance(step, Launch)
    return [s for s in work if not (isinstance(s, Allocate) and s.name in dropped)], names


def _fits(old: Allocate, new: Allocate | None, step: Launch, last: int, now: int) -> bool:
    if new is None or last != now or old.name == new.name:
        return False
    if step.tensors.count(old.name) != 1 or step.tensors.count(new.name) != 1:
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


def _renamed(step: Step, old: str, new: str) -> Step:
    match step:
        case Launch():
            return replace(step, tensors=tuple(new if t == old else t for t in step.tensors))
        case View():
            return replace(step, source=new if step.source == old else step.source)
        case Call():
            return replace(step, args=re.sub(rf"\b{old}\b", new, step.args))
        case _:
            return step
