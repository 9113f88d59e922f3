"""Partition -> Plan: build the steps, then run the passes on memory and launches, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tofuse.analysis.plan_liveness import peak_bytes
from tofuse.cost.machine import SMALLEST_POOLED
from tofuse.cost.thresholds import PEAK_TOLERANCE
from tofuse.graph_partition import Partition
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import Value
from tofuse.ir.plan import Allocate, OutVariant, Plan, variable
from tofuse.ir.region import Region
from tofuse.plan.build_steps import StepBuilder
from tofuse.plan.donation import assign_donations
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.plan.signature import CallSignature

PlanPass = Callable[[Plan], Plan]
PlanPasses = tuple[Sequence[PlanPass], Sequence[Sequence[PlanPass]]]


def build_plan(
    partition: Partition,
    signature: CallSignature,
    bindings: Mapping[Region, KernelBinding],
    executor_targets: Mapping[Region, str],
    out_variant: Callable[[str], OutVariant | None],
    passes: Callable[[Mapping[int, KernelBinding], Sequence[Allocate]], PlanPasses],
) -> Plan:
    """Return the plan of a partition; PyTorch runs regions without a binding op by op.

    `executor_targets` names the function that runs a library region, if it is not the region's
    operator. `passes` takes the bindings by kernel, and the tensors that the plan did not allocate
    and that alias nothing. It returns passes that always run, and alternatives: the first one is
    taken that raises the peak memory by no more than `PEAK_TOLERANCE`. The last one is empty.
    """
    returned = [r for r in signature.results if isinstance(r, Value)]
    donations = assign_donations(partition, signature.mutations, returned, bindings)
    builder = StepBuilder(partition, signature, bindings, donations, executor_targets, out_variant)
    draft = builder.run()
    saved = [v for v in partition.graph.inputs if v.name in signature.saved]
    exclusive = (*builder.exclusive, *_reusable_saved_tensors(saved))
    always, alternatives = passes({b.kernel: b for b in bindings.values()}, exclusive)
    plan = _run(draft, always)
    limit = peak_bytes(plan, partition.graph, saved) + PEAK_TOLERANCE
    candidates = (_run(plan, alternative) for alternative in alternatives)
    return next(c for c in candidates if peak_bytes(c, partition.graph, saved) <= limit)


def _run(plan: Plan, passes: Sequence[PlanPass]) -> Plan:
    for plan_pass in passes:
        plan = plan_pass(plan)
    return plan


def _reusable_saved_tensors(saved: Iterable[Value]) -> list[Allocate]:
    """Return the layouts of saved tensors that are large enough to be worth reusing."""
    return [
        Allocate(variable(v), v.shape, v.layout, v.dtype)
        for v in saved
        if v.layout is not None and v.type.on_host and size_hint(v.type.nbytes) >= SMALLEST_POOLED
    ]
