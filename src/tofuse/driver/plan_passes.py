"""The passes over the plan of one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tofuse.cost.machine import SMALLEST_POOLED, Machine
from tofuse.ir.plan import Allocate
from tofuse.plan.arena import allocate_arena
from tofuse.plan.buffer_reuse import reuse_buffers
from tofuse.plan.build import PlanPasses
from tofuse.plan.fold_views import fold_views
from tofuse.plan.insert_releases import insert_releases
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.plan.launch_groups import group_launches
from tofuse.plan.tile_launches import tile_launches


def plan_passes(
    bindings: Mapping[int, KernelBinding], exclusive: Sequence[Allocate], machine: Machine
) -> PlanPasses:
    """Return the passes over a plan that always run, and alternatives that may raise its peak."""
    pairs = {kernel: b.facts.alias_pairs for kernel, b in bindings.items()}
    reuse = partial(reuse_buffers, alias_pairs=pairs, exclusive=exclusive)
    tile = partial(tile_launches, bindings=bindings, machine=machine)
    group = partial(group_launches, bindings=bindings)
    small_arena = partial(allocate_arena, size_limit=SMALLEST_POOLED)
    alternatives = (
        (group, allocate_arena),
        (group, small_arena),
        (group,),
        (allocate_arena,),
        (small_arena,),
        (),
    )
    return (tile, reuse, fold_views, insert_releases), alternatives
