"""Plan -> Plan: put launches that do not depend on each other into groups, each one launch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tofuse.analysis.plan_liveness import owned_address, owners_of
from tofuse.cost.thresholds import TOLERATED_EXCESS
from tofuse.ir.dims import product, size_hint
from tofuse.ir.plan import (
    Address,
    Allocate,
    Launch,
    Plan,
    Release,
    Step,
    View,
    launches_by_group,
    tiles_by_group,
)
from tofuse.plan.kernel_binding import KernelBinding

ALIGNED_SIZE = 16  # elements


def group_launches(plan: Plan, bindings: Mapping[int, KernelBinding]) -> Plan:
    """Number the groups of launches that may run in parallel.

    Between two library calls, a launch moves up to the first level at which everything it depends
    on has run. The tensors of all levels are allocated before the first level, and released after
    the last. `bindings` has a binding of each kernel.
    """
    return _Grouping(plan, bindings).run()


def launch_count(plan: Plan) -> int:
    """Return how many launches a call makes; a group counts as one."""
    groups = [x.group for x in plan.steps if isinstance(x, Launch)]
    return groups.count(None) + len({g for g in groups if g is not None})


def describe_groups(plan: Plan) -> tuple[str, ...]:
    """Return a sentence for each launch that runs several regions."""
    sentences, tiles = [], tiles_by_group(plan)
    for number, launches in launches_by_group(plan).items():
        kernels = len({x.kernel for x in launches})
        of = "one kernel" if kernels == 1 else f"{kernels} kernels"
        names = f"{launches[0].name} to {launches[-1].name}"
        how = f"by {tiles[number].count} tiles of their rows" if number in tiles else f"of {of}"
        sentences.append(f"{len(launches)} regions in one launch, {how}: {names}")
    return tuple(sentences)


@dataclass(eq=False)
class _Grouping:
    """The steps written so far, and the segment since the last step that no launch may cross."""

    plan: Plan
    bindings: Mapping[int, KernelBinding]
    steps: list[Step] = field(default_factory=list)
    segment: list[Step] = field(default_factory=list)  # in the order of the plan
    levels: list[list[Launch]] = field(default_factory=list)
    frees_memory: bool = False  # whether a release of the segment frees memory
    owners: dict[str, str] = field(init=False)
    caller_owned: frozenset[str] = frozenset()  # tensors that outlive the call
    # by owner of memory: the last level that reads or writes it
    last_levels: dict[str, dict[tuple[Address, bool], int]] = field(default_factory=dict)
    extra_live_bytes: int = 0
    groups: int = field(init=False)

    def __post_init__(self) -> None:
        """Only a backward owns its arguments: the tensors that the forward saved for it."""
        self.owners = owners_of(self.plan.steps)
        self.groups = 1 + max(launches_by_group(self.plan), default=-1)
        if self.plan.name != "backward":
            self.caller_owned = frozenset(p.name for p in self.plan.parameters)

    def run(self) -> Plan:
        for step in self.plan.steps:
            match step:
                case Launch():
                    self._launch(step)
                case Release():
                    owned = not self.caller_owned.issuperset(step.names)
                    self.frees_memory = self.frees_memory or owned
                    self.segment.append(step)
                case Allocate():
                    self._allocate(step)
                case View():
                    self.segment.append(step)
                case _:
                    self._end_segment()
                    self.steps.append(step)
        self._end_segment()
        return replace(self.plan, steps=tuple(self.steps))

    def _allocate(self, step: Allocate) -> None:
        """Hoist an allocation, unless too much memory then is live that is not in plan order."""
        if self.frees_memory and self.levels:
            self.extra_live_bytes += size_hint(product((*step.shape, step.dtype.itemsize)))
            if self.extra_live_bytes > TOLERATED_EXCESS:
                self._end_segment()
        self.segment.append(step)

    def _launch(self, step: Launch) -> None:
        """Put a launch into the first level after those it depends on."""
        write_mask = self.bindings[step.kernel].facts.write_mask
        if write_mask is None or step.group is not None:
            self._end_segment()
            self.steps.append(step)
            return
        accesses = [
            (owned_address(operand, self.owners), written)
            for operand, written in zip(step.tensors, write_mask, strict=True)
        ]
        level = max((self._first_level(*access) for access in accesses), default=0)
        for access, written in accesses:
            levels = self.last_levels.setdefault(access.tensor, {})
            levels[access, written] = max(level, levels.get((access, written), -1))
        if level == len(self.levels):
            self.levels.append([])
        self.levels[level].append(step)
        self.segment.append(step)

    def _first_level(self, access: Address, written: bool) -> int:
        """Return the first level after the writes of that memory; after its reads, for a write."""
        earlier = self.last_levels.get(access.tensor, {}).items()
        return max(
            (
                n + 1
                for (other, was_written), n in earlier
                if (written or was_written) and other.overlaps(access)
            ),
            default=0,
        )

    def _end_segment(self) -> None:
        """Write the segment: by levels if any level has several launches, else in plan order."""
        levels = [self._groups(launches) for launches in self.levels]
        if any(len(group) > 1 for groups in levels for group in groups):
            self._write_levels(levels)
        else:
            self.steps += self.segment
        self.segment, self.levels, self.last_levels = [], [], {}
        self.extra_live_bytes, self.frees_memory = 0, False

    def _groups(self, launches: Sequence[Launch]) -> list[list[Launch]]:
        """Return the launches of a level that are one launch each."""
        found: dict[Hashable, list[Launch]] = {}
        for x in launches:
            facts = self.bindings[x.kernel].facts
            sizes = (x.sizes[k] for k in facts.aligned_sizes)
            aligned = tuple(isinstance(n, int) and n % ALIGNED_SIZE == 0 for n in sizes)
            key = None if facts.group_limit is None else (x.kernel, aligned)
            found.setdefault(key, []).append(x)
        groups = []
        for members in found.values():
            most = self.bindings[members[0].kernel].facts.group_limit or len(members)
            groups += [members[k : k + most] for k in range(0, len(members), most)]
        return groups

    def _write_levels(self, levels: Sequence[Sequence[list[Launch]]]) -> None:
        self.steps += [s for s in self.segment if isinstance(s, (Allocate, View))]
        for launches in (group for groups in levels for group in groups):
            if len(launches) > 1:
                launches = [replace(x, group=self.groups) for x in launches]
                self.groups += 1
            self.steps += launches
        releases = [n for s in self.segment if isinstance(s, Release) for n in s.names]
        if releases:
            self.steps.append(Release(tuple(releases)))
