"""Plan -> Plan: launches that do not depend on each other are made together, as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tofuse.ir.dims import hint, product
from tofuse.ir.plan import Allocate, Launch, Plan, Release, Step, View
from tofuse.ir.plan.verify import base_of, makes
from tofuse.ops.aten_aliases import lender

LATE_BYTES = 1 << 20  # of tensors that may live side by side, though one could follow the other

Written = Mapping[int, "tuple[bool, ...] | None"]  # by kernel; None: launched by itself


def launch_together(plan: Plan, written: Written) -> Plan:
    """Number the groups of launches that may run side by side.

    `written` says of a kernel which of its tensors it writes. Between two library calls, launches
    move up to the first group in which all that they need has been made. Their tensors are then
    allocated before all of them, and released after.
    """
    return _Grouping(plan, written).run()


def groups_of(plan: Plan) -> dict[int, list[Launch]]:
    """The launches of each group."""
    groups: dict[int, list[Launch]] = {}
    for step in plan.steps:
        if isinstance(step, Launch) and step.group is not None:
            groups.setdefault(step.group, []).append(step)
    return groups


def launch_count(plan: Plan) -> int:
    """How many launches a call makes."""
    groups = [x.group for x in plan.steps if isinstance(x, Launch)]
    return groups.count(None) + len({g for g in groups if g is not None})


def sharing(plan: Plan) -> tuple[str, ...]:
    """A sentence for each launch that runs several regions."""
    found = []
    for launches in groups_of(plan).values():
        kernels = len({x.kernel for x in launches})
        of = "one kernel" if kernels == 1 else f"{kernels} kernels"
        first = f"{launches[0].name} to {launches[-1].name}"
        found.append(f"{len(launches)} regions in one launch, of {of}: {first}")
    return tuple(found)


@dataclass(eq=False)
class _Grouping:
    plan: Plan
    written: Written
    steps: list[Step] = field(default_factory=list)
    memory: dict[str, str] = field(default_factory=dict)  # of views: whose it is
    since: list[Step] = field(default_factory=list)  # as they were
    before: list[Step] = field(default_factory=list)
    levels: list[list[Launch]] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    frees: bool = False  # whether memory comes free with those
    callers: frozenset[str] = frozenset()  # tensors that live on anyhow
    parts: dict[str, dict[str, None]] = field(default_factory=dict)  # of tensors: t_x+64
    read_at: dict[str, int] = field(default_factory=dict)  # the last level that reads a tensor
    written_at: dict[str, int] = field(default_factory=dict)
    late: int = 0
    groups: int = 0

    def __post_init__(self) -> None:
        """Nobody else holds what a forward saved for the backward; all else is the caller's."""
        if self.plan.name != "backward":
            self.callers = frozenset(p.name for p in self.plan.parameters)

    def run(self) -> Plan:
        for step in self.plan.steps:
            match step:
                case Launch():
                    self._launch(step)
                case Release():
                    self.after += step.names
                    self.frees = self.frees or not self.callers.issuperset(step.names)
                    self.since.append(step)
                case Allocate():
                    self._allocate(step)
                    self.since.append(step)
                case View():
                    self._lent(step)
                    self.before.append(step)
                    self.since.append(step)
                case _:
                    self._flush()
                    self._lent(step)
                    self.steps.append(step)
        self._flush()
        return replace(self.plan, steps=tuple(self.steps))

    def _lent(self, step: Step) -> None:
        source = lender(step)
        if source is not None:
            self.memory |= dict.fromkeys(makes(step), self.memory.get(source, source))

    def _allocate(self, step: Allocate) -> None:
        if self.frees and self.levels:
            self.late += hint(product((*step.shape, step.dtype.itemsize)))
            if self.late > LATE_BYTES:
                self._flush()
        self.before.append(step)

    def _launch(self, step: Launch) -> None:
        writes = self.written[step.kernel]
        if writes is None:
            self._flush()
            self.steps.append(step)
            return
        touched = [(t, w) for t, w in zip(step.tensors, writes, strict=True)]
        touched = [(part, w) for t, w in touched for part in self._parts(t)]
        level = 0
        for t, writing in touched:
            level = max(level, self.written_at.get(t, -1) + 1)
            if writing:
                level = max(level, self.read_at.get(t, -1) + 1)
        for t, writing in touched:
            at = self.written_at if writing else self.read_at
            at[t] = max(level, at.get(t, -1))
        if level == len(self.levels):
            self.levels.append([])
        self.levels[level].append(step)
        self.since.append(step)

    def _parts(self, tensor: str) -> tuple[str, ...]:
        """What to look at for it: a part by itself, all parts with what they are parts of."""
        memory = self.memory.get(tensor, tensor)
        base = base_of(memory)
        if base != memory:
            self.parts.setdefault(base, {})[memory] = None
            return (memory,)
        return (memory, *self.parts.get(memory, ()))

    def _flush(self) -> None:
        if any(len(launches) > 1 for launches in self.levels):
            self._together()
        else:
            self.steps += self.since
        self.since, self.before, self.levels, self.after = [], [], [], []
        self.late, self.frees = 0, False
        self.read_at, self.written_at = {}, {}

    def _together(self) -> None:
        self.steps += self.before
        for launches in self.levels:
            if len(launches) > 1:
                launches = [replace(x, group=self.groups) for x in launches]
                self.groups += 1
            self.steps += launches
        if self.after:
            self.steps.append(Release(tuple(self.after)))
