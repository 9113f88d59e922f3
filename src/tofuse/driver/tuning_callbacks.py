"""Connect the autotuner to the compiler: build candidates, list schedules, predict times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tofuse.config import Config
from tofuse.cost.machine_source import measured_machine, store_of
from tofuse.cost.nest import nest_cost
from tofuse.driver.autotune import Choice, TuningCallbacks, apply_choices, autotune
from tofuse.driver.codegen import CodegenContext, GeneratedKernel, generate_kernel
from tofuse.driver.link import LinkedProgram
from tofuse.ir.nest import Nest
from tofuse.ir.region import Partition, Region
from tofuse.ir.schedule import Schedule
from tofuse.plan.signature import CallSignature
from tofuse.runtime.execute import CompiledPlan
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.schedule_variants import schedule_variants

BuildProgram = Callable[[Partition, CallSignature, Mapping[Region, Choice], Config], LinkedProgram]


def measured_choices(context: CodegenContext, build_program: BuildProgram) -> dict[Region, Choice]:
    """Return the fastest candidate for each region that the autotuner can time."""
    target, config = context.oracle.target, context.config
    strict = replace(config, strict=True)
    machine = measured_machine(target, config)

    def build(part: Partition, choices: Mapping[Region, Choice]) -> CompiledPlan:
        signature = CallSignature(part.graph.inputs, part.graph.outputs, {})
        part, choices = apply_choices(part, choices)
        return build_program(part, signature, choices, strict).load(None)

    def nest_of(part: Partition, region: Region) -> Nest | None:
        isolated = replace(context, partition=part, nontemporal=frozenset(), config=strict)
        generated = generate_kernel(region, isolated)
        if isinstance(generated, GeneratedKernel) and isinstance(generated.nest, Nest):
            return generated.nest
        return None

    def schedules(part: Partition, region: Region) -> Sequence[Schedule]:
        nest = nest_of(part, region)
        if nest is None:
            return ()
        variants = schedule_variants(nest.kernel, nest.schedule)
        nests = [build_nest(nest.kernel, s, repeat_reductions=True) for s in variants]
        nests.sort(key=lambda n: nest_cost(n, machine).us)
        return [n.schedule for n in nests]

    def predicted_us(part: Partition, region: Region) -> float:
        nest = nest_of(part, region)
        return math.inf if nest is None else nest_cost(nest, machine).us

    key = (repr(target), config.precision, *config.executors)
    callbacks = TuningCallbacks(build, schedules, predicted_us)
    return autotune(context.partition, callbacks, key, store_of(config))
