"""Kernels that write over an operand which nobody reads afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tofuse.ir.dims import Dim, product
from tofuse.ir.plan import Allocate, Call, Launch, Step, View
from tofuse.ir.plan.verify import base_of, makes, reads
from tofuse.ops.aten_aliases import lender

ADDING = frozenset(("aten.addmm.out", "aten.baddbmm.out", "aten.index_add.out"))
Pairs = tuple[tuple[int, int], ...]  # positions (read, written) of buffers


def in_place(
    steps: Sequence[Step],
    results: Sequence[str],
    legal: Mapping[int, Pairs],
    fresh: Sequence[Allocate] = (),
) -> tuple[list[Step], tuple[str, ...], frozenset[str]]:
    """Give outputs the memory of dying operands; `legal` has the pairs of every kernel.

    Only what the plan allocated is written over, by a tensor of the same type that fills the same
    memory, or what `fresh` tells of: arguments that nobody reads afterwards, and what a library
    call made and nobody else holds. The last result names what is written over.
    An output of another shape is a view of the operand, where more than launches read it. Library
    calls that add to their first operand write over that.
    """
    work = _Work(list(steps), tuple(results), fresh)
    for k in range(len(work.steps)):
        for i, j in _pairs(work.steps[k], legal):
            work.overwrite(k, i, j)
    return work.done()


def _pairs(step: Step, legal: Mapping[int, Pairs]) -> Pairs:
    """Positions of what a step may write over, and of what it writes, among all it names."""
    if isinstance(step, Call) and step.target in ADDING and step.args.startswith("t_"):
        return ((0, len(reads(step)) - 1),)
    return legal.get(step.kernel, ()) if isinstance(step, Launch) else ()


class _Work:
    """A plan's steps while outputs move into operands' memory."""

    def __init__(self, steps: list[Step], names: tuple[str, ...], fresh: Sequence[Allocate]):
        self.steps, self.names = steps, names
        self.made = {s.name: s for s in (*steps, *fresh) if isinstance(s, Allocate)}
        self.root = _roots(steps)
        self.last = _last_uses(steps, names, self.root)
        self.dropped: set[str] = set()
        self.over: set[str] = set()
        self.views: dict[int, list[Step]] = {}

    def overwrite(self, k: int, i: int, j: int) -> None:
        """Let step `k` write over what it names at place `i` what it makes at place `j`."""
        step = self.steps[k]
        tensors = step.tensors if isinstance(step, Launch) else reads(step)
        if tensors[i] not in self.made or tensors[j] not in self.made:
            return
        old, new = self.made[tensors[i]], self.made[tensors[j]]
        bases = [self.root.get(base, base) for base in map(base_of, tensors)]
        alone = bases.count(old.name) == bases.count(new.name) == 1
        alike = (old.shape, old.strides) == (new.shape, new.strides)
        if not alone or self.last[old.name] != k or old.dtype != new.dtype:
            return
        if not alike and (isinstance(step, Call) or not _fill_the_same(old, new)):
            return
        moved = (Launch, View, Call) if alike else (Launch, View)
        for n, later in enumerate(self.steps[k:], k):
            if isinstance(later, moved):
                self.steps[n] = renamed(later, new.name, old.name)
        if alike:
            self.names = tuple(old.name if n == new.name else n for n in self.names)
        elif new.name in self.names or any(new.name in reads(s) for s in self.steps[k:]):
            view = View(new.name, old.name, new.shape, new.strides, 0)
            self.views.setdefault(k, []).append(view)
        self.root |= {v: old.name for v, root in self.root.items() if root == new.name}
        self.root[new.name] = old.name
        self.last[old.name] = self.last[new.name]
        self.dropped.add(new.name)
        self.over.add(old.name)

    def done(self) -> tuple[list[Step], tuple[str, ...], frozenset[str]]:
        """The steps, without what nothing needs any more, and names: results, and what they are
        made over."""
        steps: list[Step] = []
        for k, step in enumerate(self.steps):
            if not isinstance(step, Allocate) or step.name not in self.dropped:
                steps.append(step)
            steps += self.views.get(k, ())
        return steps, self.names, frozenset(self.over)


def packed(shape: Sequence[Dim], strides: Sequence[Dim]) -> Dim | None:
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


def _fill_the_same(old: Allocate, new: Allocate) -> bool:
    size = packed(old.shape, old.strides)
    return size is not None and size == packed(new.shape, new.strides)


def _roots(steps: Sequence[Step]) -> dict[str, str]:
    """Of each view, PyTorch's own ones too, the tensor whose memory it lies in."""
    root: dict[str, str] = {}
    for step in steps:
        source = lender(step)
        if source is not None:
            root |= dict.fromkeys(makes(step), root.get(source, source))
    return root


def _last_uses(
    steps: Sequence[Step], results: Sequence[str], root: Mapping[str, str]
) -> dict[str, int]:
    """The last step that reads a tensor or a view of it; past the end where it is returned."""
    last: dict[str, int] = {}
    for k, step in enumerate(steps):
        last |= dict.fromkeys((root.get(name, name) for name in reads(step)), k)
    return last | dict.fromkeys((root.get(name, name) for name in results), len(steps))


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
