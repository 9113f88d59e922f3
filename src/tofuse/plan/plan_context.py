"""What passes over a plan know beside the plan: aliasing rules, exclusive and saved tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tofuse.ir.plan import Allocate, Plan
from tofuse.plan.kernel_binding import AliasPairs

PlanPass = Callable[[Plan], Plan]


@dataclass(frozen=True)
class PlanContext:
    """Facts about the kernels and tensors of one plan.

    `alias_pairs` and `write_masks` are those of the kernels, by number. `exclusive` are tensors
    that the plan did not allocate and that alias nothing; `saved` names the saved ones.
    """

    alias_pairs: Mapping[int, AliasPairs] = field(default_factory=dict)
    write_masks: Mapping[int, tuple[bool, ...] | None] = field(default_factory=dict)
    exclusive: Sequence[Allocate] = ()
    saved: frozenset[str] = frozenset()
