"""Plan steps -> plan steps: write results into the memory of operands that are read no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tofuse.analysis.alias import updates_operand
from tofuse.analysis.plan_liveness import last_uses, owners_of
from tofuse.ir.call_arguments import CallArguments, TensorRef
from tofuse.ir.dims import Dim, product
from tofuse.ir.launch_facts import AliasPairs
from tofuse.ir.plan import Address, Allocate, Call, Launch, Plan, Step, View
from tofuse.ir.verify_plan import reads
from tofuse.plan.build_steps import COPY


def reuse_buffers(
    plan: Plan, alias_pairs: Mapping[int, AliasPairs], exclusive: Sequence[Allocate] = ()
) -> Plan:
    """Give outputs the memory of operands that die.

    A tensor's memory is reused only for a tensor of the same dtype that fills the same memory, and
    only if the plan allocated it or it is exclusive: a dead saved tensor, or the result of a
    library call that aliases nothing. A saved tensor that is reused becomes a donated parameter.
    An output of another shape becomes a view of the operand, if more than launches read it.
    `alias_pairs` are those of the kernels, by number.
    """
    reuse = _Reuse(plan, exclusive)
    for k in range(len(reuse.steps)):
        for read, written in _reuse_candidates(reuse.steps[k], alias_pairs):
            reuse.try_reuse(k, read, written)
    return reuse.finish()


def _reuse_candidates(step: Step, alias_pairs: Mapping[int, AliasPairs]) -> AliasPairs:
    """Return positions (read, written) among a step's tensors that may be the same memory."""
    match step:
        case Call(target, CallArguments((TensorRef(), *_), keyword)):
            if target == COPY:
                return ((1, 0),)
            in_place = updates_operand(target) and "out" in dict(keyword)
            return ((0, len(reads(step)) - 1),) if in_place else ()
        case Launch(kernel, group=None):  # a tile computes rows that another one reads
            return alias_pairs.get(kernel, ())
    return ()


class _Reuse:
    """The steps of a plan while outputs move into the memory of operands."""

    def __init__(self, plan: Plan, exclusive: Sequence[Allocate]):
        self.plan, self.steps, self.results = plan, list(plan.steps), plan.results
        known = (*plan.steps, *exclusive)
        self.allocations = {s.name: s for s in known if isinstance(s, Allocate)}
        self.owners = owners_of(plan.steps)
        self.last_use: dict[str, int] = {}  # by owner
        for name, k in last_uses(plan).items():
            owner = self.owners.get(name, name)
            self.last_use[owner] = max(k, self.last_use.get(owner, k))
        self.eliminated: set[str] = set()
        self.reused: set[str] = set()
        self.new_views: dict[int, list[Step]] = {}

    def try_reuse(self, k: int, read: int, written: int) -> None:
        """Write the output at position `written` of step `k` into the operand at `read`, if legal.

        The operand must die here, and neither may occur a second time among the step's tensors.
        """
        step = self.steps[k]
        tensors = step.tensors if isinstance(step, Launch) else tuple(map(Address, reads(step)))
        whole = [self.allocations.get(t.tensor) if t.offset is None else None for t in tensors]
        old, new = whole[read], whole[written]
        if old is None or new is None:
            return
        owners = [self.owners.get(t.tensor, t.tensor) for t in tensors]
        distinct = owners.count(old.name) == owners.count(new.name) == 1
        same_layout = (old.shape, old.strides) == (new.shape, new.strides)
        if not distinct or self.last_use[old.name] != k or old.dtype != new.dtype:
            return
        if not same_layout and (isinstance(step, Call) or not same_dense_size(old, new)):
            return
        self._move(k, old, new, same_layout)

    def _move(self, k: int, old: Allocate, new: Allocate, same_layout: bool) -> None:
        """Replace `new` by `old` from step `k` on; by a view of it if the layouts differ."""
        renamed = (Launch, View, Call) if same_layout else (Launch, View)
        for n, later in enumerate(self.steps[k:], k):
            if isinstance(later, renamed):
                self.steps[n] = rename_operand(later, new.name, old.name)
        if same_layout:
            self.results = tuple(old.name if n == new.name else n for n in self.results)
        elif new.name in self.results or any(new.name in reads(s) for s in self.steps[k:]):
            view = View(new.name, old.name, new.shape, new.strides, 0)
            self.new_views.setdefault(k, []).append(view)
        self.owners |= {v: old.name for v, owner in self.owners.items() if owner == new.name}
        self.owners[new.name] = old.name
        self.last_use[old.name] = self.last_use[new.name]
        self.eliminated.add(new.name)
        self.reused.add(old.name)

    def finish(self) -> Plan:
        """Return the plan without the eliminated allocations."""
        steps: list[Step] = []
        for k, step in enumerate(self.steps):
            if not self._is_eliminated(step):
                steps.append(step)
            steps += self.new_views.get(k, ())
        donated = (replace(p, donated=p.name in self.reused) for p in self.plan.parameters)
        parameters = tuple(donated)
        return replace(self.plan, parameters=parameters, steps=tuple(steps), results=self.results)

    def _is_eliminated(self, step: Step) -> bool:
        """Return whether a step allocates a tensor that is another now, or copies one to itself."""
        if isinstance(step, Call):
            return step.target == COPY and len(set(reads(step))) == 1
        return isinstance(step, Allocate) and step.name in self.eliminated


def _dense_elements(shape: Sequence[Dim], strides: Sequence[Dim]) -> Dim | None:
    """Return the number of elements; None if they have gaps, overlap, or have symbolic sizes."""
    if not all(isinstance(d, int) for d in (*shape, *strides)):
        return None
    size: Dim = 1
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent != 1:
            if stride != size:
                return None
            size *= extent
    return product(shape)


def same_dense_size(old: Allocate, new: Allocate | View) -> bool:
    """Return whether two tensors of static size are dense and have equally many elements."""
    size = _dense_elements(old.shape, old.strides)
    return size is not None and size == _dense_elements(new.shape, new.strides)


def rename_operand(step: Step, old: str, new: str) -> Step:
    """Return the step with operand `old` replaced by `new`."""
    match step:
        case Launch():
            tensors = (replace(t, tensor=new) if t.tensor == old else t for t in step.tensors)
            return replace(step, tensors=tuple(tensors))
        case View():
            return replace(step, source=new if step.source == old else step.source)
        case Call():
            return replace(step, arguments=step.arguments.renamed(old, new))
        case _:
            return step
