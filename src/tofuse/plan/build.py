"""Partition -> Plan: build the steps, then run the passes on memory and launches, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from tofuse.cost.machine import SMALLEST_POOLED
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Value
from tofuse.ir.plan import Allocate, Plan
from tofuse.ir.region import Partition, Region
from tofuse.plan.arena import allocate_arena
from tofuse.plan.buffer_reuse import reuse_buffers
from tofuse.plan.build_steps import build_steps, variable
from tofuse.plan.donation import assign_donations
from tofuse.plan.fold_views import fold_views
from tofuse.plan.insert_releases import insert_releases
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.plan.launch_groups import group_launches
from tofuse.plan.library_results import OutVariant
from tofuse.plan.peak import MemoryTimeline, memory_timeline, peak
from tofuse.plan.signature import CallSignature

PEAK_TOLERANCE = 64 * 1024  # bytes by which an arena or a group of launches may raise the peak


def build_plan(
    partition: Partition,
    signature: CallSignature,
    bindings: Mapping[Region, KernelBinding],
    executor_targets: Mapping[Region, str],
    out_variant: Callable[[str], OutVariant | None],
) -> Plan:
    """Return the plan of a partition; PyTorch runs regions without a binding op by op.

    `executor_targets` names the function that runs a library region, if it is not the region's
    operator. Launches are grouped, and allocations moved into an arena, unless that raises the peak
    memory by more than `PEAK_TOLERANCE`.
    """
    returned = [r for r in signature.results if isinstance(r, Value)]
    saved = [v for v in partition.graph.inputs if v.name in signature.saved]
    reusable = _reusable_saved_tensors(saved)
    alias_pairs = {b.kernel: b.alias_pairs for b in bindings.values()}
    write_masks = {b.kernel: b.write_mask for b in bindings.values()}

    donations = assign_donations(partition, signature.mutations, returned, bindings)
    draft = build_steps(partition, signature, bindings, donations, executor_targets, out_variant)
    plan, exclusive = draft.plan, (*draft.exclusive, *reusable)
    steps, results, reused = reuse_buffers(plan.steps, plan.results, alias_pairs, exclusive)
    steps, results = fold_views(steps, results)
    released = insert_releases(steps, results, [p.name for p in plan.parameters])
    donated_names = {s.name for s in reusable} & reused
    parameters = tuple(replace(p, donated=p.name in donated_names) for p in plan.parameters)
    plan = replace(plan, parameters=parameters, steps=released, results=results)
    grouped = group_launches(plan, write_masks)

    limit = peak(plan_timeline(plan, partition, saved)) + PEAK_TOLERANCE
    candidates = (c for p in (grouped, plan) for c in _with_arena(p))
    return next(c for c in candidates if peak(plan_timeline(c, partition, saved)) <= limit)


def _with_arena(plan: Plan) -> Iterator[Plan]:
    """Yield the plan with all intermediates in an arena, with the small ones only, with none."""
    yield allocate_arena(plan)
    yield allocate_arena(plan, SMALLEST_POOLED)
    yield plan


def plan_timeline(plan: Plan, partition: Partition, saved: Iterable[Value] = ()) -> MemoryTimeline:
    """Return the bytes live at each step of a plan; `saved` are arguments that count."""
    values = (*partition.graph.inputs, *(r for op in partition.graph.ops for r in op.results))
    sizes = {variable(v): size_hint(v.type.nbytes) for v in values}
    return memory_timeline(plan, sizes, [variable(v) for v in saved])


def _reusable_saved_tensors(saved: Iterable[Value]) -> list[Allocate]:
    """Return the layouts of saved tensors that are large enough to be worth reusing."""
    return [
        Allocate(variable(v), v.shape, v.layout, v.dtype)
        for v in saved
        if v.layout is not None
        and v.type.device == "cpu"
        and size_hint(v.type.nbytes) >= SMALLEST_POOLED
    ]
